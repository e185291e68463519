/* Soak test of references: three workers, a process each, create objects on each other, pass
 * references to the third and release them, millions of times. Memory and files must not grow.
 *
 *     rref_soak [count]        number of rounds in all (10,000,000)
 *
 * One round: a worker creates an object on the next worker, passes the reference to the third, and
 * releases its own. The third keeps the reference until it has received SOAK_KEPT others. So a
 * round is a creation, a fork and two drops, and each worker is owner, parent and child all the
 * time.
 *
 * The first twentieth (at least SOAK_MIN_WARM_UP rounds) fills caches, pools and arenas. Then, and
 * at the end, each worker waits until it holds SOAK_KEPT references and others hold SOAK_KEPT of
 * its objects, and reports its usage (struct soak_usage). The program fails (exit code 1) when a
 * value has grown by more than 1 %, or when a table of references is not empty after all references
 * are released.
 *
 * The workers are copies of this program (posix_spawn) with SOAK_RANK in the environment. The first
 * process hosts the store, sends commands through pipes, and shows progress when stderr is a
 * terminal.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/rref/soak.h"
#include "rendezvous/store_tcp.h"

extern char **environ;

/* gRPC's buffers (57 KiB each) and half-empty pages of the allocator vary, independently of the
 * number of rounds. Memory that Tether itself has allocated gets no such allowance. */
#define SLACK (512u << 10)

void soak_die(const char *what, const char *why)
{
    fprintf(stderr, "rref_soak: %s: %s\n", what, why);
    exit(1);
}

void soak_check(tether_status st, const char *what, const tether_error *err)
{
    if (st != TETHER_OK)
        soak_die(what, err->message);
}

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- The workers, as the first process sees them ---- */

struct crew_member {
    pid_t pid;
    int to;
    FILE *from;
    long done; /* rounds of the last command */
    struct soak_usage usage;
};

static struct crew_member crew[SOAK_WORKERS];

static void start_worker(int rank)
{
    int to[2], from[2];
    char text[16], *argv[] = {"rref_soak", NULL};
    posix_spawn_file_actions_t actions;
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        soak_die("making pipes", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    snprintf(text, sizeof text, "%d", rank);
    setenv("SOAK_RANK", text, 1);
    int rc = posix_spawn(&crew[rank].pid, "/proc/self/exe", &actions, NULL, argv, environ);
    if (rc != 0)
        soak_die("starting a worker", strerror(rc));
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    crew[rank].to = to[1];
    crew[rank].from = fdopen(from[0], "re");
    setvbuf(crew[rank].from, NULL, _IONBF, 0); /* so that poll() sees all bytes */
}

static void send_to_all(const char *line)
{
    for (int i = 0; i < SOAK_WORKERS; i++)
        if (write(crew[i].to, line, strlen(line)) != (ssize_t)strlen(line))
            soak_die("sending a command to a worker", strerror(errno));
}

/* Reads one line of any worker that has written one, so that no worker blocks on a full pipe. */
static struct crew_member *next_line(char *line, int size)
{
    struct pollfd ready[SOAK_WORKERS];
    for (int i = 0; i < SOAK_WORKERS; i++)
        ready[i] = (struct pollfd){.fd = fileno(crew[i].from), .events = POLLIN};
    if (poll(ready, SOAK_WORKERS, SOAK_TIMEOUT_MS) <= 0)
        soak_die("waiting for the workers", "no worker has reported progress");
    for (int i = 0; i < SOAK_WORKERS; i++)
        if (ready[i].revents) {
            if (!fgets(line, size, crew[i].from))
                soak_die("reading from a worker", "it has exited");
            return &crew[i];
        }
    return NULL;
}

static void show_progress(long before, long count, double began)
{
    static double shown;
    double now = now_s();
    long done = before;
    if (!isatty(STDERR_FILENO) || now - shown < 0.2)
        return;
    shown = now;
    for (int i = 0; i < SOAK_WORKERS; i++)
        done += crew[i].done;
    fprintf(stderr, "\r%ld of %ld rounds, %.0f a second ", done, count,
            (double)done / (now - began));
}

/* Sends the command `line` to every worker and waits until each has replied with `answer`. */
static void run_command(const char *line, const char *answer, long before, long count, double began)
{
    char reply[128];
    send_to_all(line);
    for (int i = 0; i < SOAK_WORKERS; i++)
        crew[i].done = 0;
    for (int waiting = SOAK_WORKERS; waiting > 0;) {
        struct crew_member *member = next_line(reply, sizeof reply);
        if (sscanf(reply, "at %ld", &member->done) == 1)
            show_progress(before, count, began);
        if (strncmp(reply, answer, strlen(answer)) != 0)
            continue;
        waiting--;
        sscanf(reply, "has %zu %zu %zu %d", &member->usage.own, &member->usage.allocated,
               &member->usage.resident, &member->usage.files);
    }
}

static void run(long each, long before, long count, double began)
{
    char line[64];
    snprintf(line, sizeof line, "run %ld\n", each);
    run_command(line, "ran", before, count, began);
    run_command("usage\n", "has", before, count, began);
}

/* ---- The verdict ---- */

static bool has_grown(size_t before, size_t after)
{
    return after > before + before / 100;
}

static void print_row(int rank, const char *what, size_t before, size_t after, const char *unit)
{
    printf("  w%d  %-22s %9zu %9zu %-5s %+6.2f %%\n", rank, what, before, after, unit,
           before ? ((double)after - (double)before) * 100 / (double)before : 0);
}

static bool compare(const struct soak_usage warm[SOAK_WORKERS])
{
    bool bad = false;
    printf("  %-26s %9s %9s\n", "", "warmed up", "at end");
    for (int i = 0; i < SOAK_WORKERS; i++) {
        const struct soak_usage *before = &warm[i], *after = &crew[i].usage;
        if (SOAK_MEASURES_MEMORY) {
            print_row(i, "allocated by Tether", before->own / 1024, after->own / 1024, "KiB");
            print_row(i, "allocated by all", before->allocated / 1024, after->allocated / 1024,
                      "KiB");
            print_row(i, "resident, not of files", before->resident / 1024, after->resident / 1024,
                      "KiB");
            bad |= has_grown(before->own, after->own);
            bad |= has_grown(before->allocated + SLACK, after->allocated);
            bad |= has_grown(before->resident + SLACK, after->resident);
        }
        print_row(i, "open files", (size_t)before->files, (size_t)after->files, "");
        bad |= after->files > before->files;
    }
    return !bad;
}

static void end_workers(void)
{
    for (int i = 0; i < SOAK_WORKERS; i++)
        close(crew[i].to);
    for (int i = 0; i < SOAK_WORKERS; i++) {
        int status = 0;
        waitpid(crew[i].pid, &status, 0);
        fclose(crew[i].from);
        if (status != 0)
            soak_die("ending a worker", "its exit code is not 0");
    }
}

static int soak(long count)
{
    tether_store_server *server = NULL;
    tether_error err = {0};
    char port[16];
    struct soak_usage warm[SOAK_WORKERS];
    soak_check(tether_store_server_new(TETHER_STORE_SERVER_OPTS(.port = 0), &server, &err),
               "hosting a store", &err);
    snprintf(port, sizeof port, "%d", tether_store_server_port(server));
    setenv("SOAK_PORT", port, 1);
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0",
           1); /* cached blocks count as allocated */
    for (int i = 0; i < SOAK_WORKERS; i++)
        start_worker(i);

    double began = now_s();
    long warm_up = count / 20 > SOAK_MIN_WARM_UP ? count / 20 : SOAK_MIN_WARM_UP;
    run(warm_up / SOAK_WORKERS, 0, warm_up + count, began);
    for (int i = 0; i < SOAK_WORKERS; i++)
        warm[i] = crew[i].usage;
    run(count / SOAK_WORKERS + 1, warm_up, warm_up + count, began);
    double took = now_s() - began;

    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    printf("%ld rounds after %ld to warm up, in %.0f s: %.0f a second\n", count, warm_up, took,
           (double)(count + warm_up) / took);
    bool good = compare(warm);
    run_command("forget\n", "forgot", 0, 0, 0);
    end_workers();
    tether_store_server_release(server);
    printf("%s\n", good ? "memory and files have not grown"
                        : "memory or files have grown by more than 1 %");
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("SOAK_RANK");
    if (rank)
        return soak_worker_main(atoi(rank));
    char *end = "";
    long count = argc > 1 ? strtol(argv[1], &end, 10) : 10000000;
    if (argc > 2 || *end || count < 1)
        soak_die("usage", "rref_soak [count]");
    return soak(count);
}
