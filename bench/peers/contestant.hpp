// The C++ side of bench/lib/contestant.h: a server process, and the questions on standard input.
//
// The server is forked before any library has threads, so Serve() must be the first thing that
// main() does. It ends with its client.
#ifndef TETHER_BENCH_PEERS_CONTESTANT_HPP
#define TETHER_BENCH_PEERS_CONTESTANT_HPP

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace bench {

[[noreturn]] inline void Die(const std::string &why) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
    std::_Exit(1);
}

inline double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

inline void Pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu % static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), &set);
    sched_setaffinity(0, sizeof set, &set);
}

// A server tells its port through `ready` and serves until it is killed.
using Server = std::function<void(std::function<void(int port)> ready)>;

struct Process {
    pid_t pid;
    int port;
};

inline Process Serve(const Server &server, int client_cpu, int server_cpu) {
    int fds[2], port = -1;
    if (pipe(fds) != 0) Die("no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        Pin(server_cpu);
        server([&](int its_port) {
            if (write(fds[1], &its_port, sizeof its_port) < 0) std::_Exit(1);
        });
        std::_Exit(0);
    }
    close(fds[1]);
    if (read(fds[0], &port, sizeof port) != sizeof port) Die("the server did not start");
    close(fds[0]);
    Pin(client_cpu);
    return {pid, port};
}

// The median time of `once`, done again and again for so long; microseconds.
inline double MedianUs(double seconds, const std::function<void()> &once) {
    std::vector<double> times;
    for (double begin = Now(), last = begin; last < begin + seconds;) {
        once();
        double now = Now();
        times.push_back((now - last) * 1e6);
        last = now;
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

// How often a second `some` gets done, which says how many it did.
inline double Rate(double seconds, const std::function<size_t()> &some) {
    size_t n = 0;
    double begin = Now(), now = begin;
    for (; now < begin + seconds; now = Now()) n += some();
    return static_cast<double>(n) / (now - begin);
}

using Skills = std::map<std::string, std::function<double(double seconds)>>;

// Warms up, then answers until the end of input; ends the process.
[[noreturn]] inline void Answer(const Skills &skills, const Process &server) {
    char line[128], figure[64];
    double seconds;
    for (auto &skill : skills) skill.second(0.05);
    std::puts("ready");
    std::fflush(stdout);
    while (std::fgets(line, sizeof line, stdin)) {
        auto skill = std::sscanf(line, "%63s %lf", figure, &seconds) == 2 ? skills.find(figure)
                                                                        : skills.end();
        if (skill == skills.end())
            std::puts("-");
        else
            std::printf("%.9g\n", skill->second(seconds));
        std::fflush(stdout);
    }
    kill(server.pid, SIGKILL);
    waitpid(server.pid, nullptr, 0);
    std::_Exit(0);
}

}  // namespace bench

#endif
