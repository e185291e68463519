/* Measures the cost of a call and compares it with others: raw blocking TCP, gRPC C++, Cap'n Proto,
 * Java RMI, PyTorch RPC. lib/contest.h explains the measurement; tether.c and bench/peers have
 * the contestants.
 *
 *     rpc_bench [--peers=FOLDER] [--tsv=FILE] [--rounds=N] [--seconds=S] [--only=TEXT]
 */
#include "bench/lib/contest.h"
#include "bench/lib/raw.h"
#include "bench/lib/results.h"
#include "bench/rpc/tether.h"

#define LEN(array) (sizeof(array) / sizeof(array)[0])

enum { RAW, LOCAL, NETWORK, GRPC, CAPNP, RMI, TORCH };

static const struct bench_contestant contestants[] = {
    [RAW] = {"raw TCP", {"self", "raw", "tcp"}},
    [LOCAL] = {"Tether (local, spin)", {"self", "contestant", "local"}},
    [NETWORK] = {"Tether (network, no spin)", {"self", "contestant", "network"}},
    [GRPC] = {"gRPC C++ callback", {"@grpc_cpp"}, "grpc_cpp", "libgrpc++-dev"},
    [CAPNP] = {"Cap'n Proto", {"@capnp_rpc"}, "capnp_rpc", "libcapnp-dev"},
    [RMI] = {"Java RMI",
             {"java", "-cp", "@", "RmiPeer"},
             "RmiPeer.class",
             "openjdk-17-jdk-headless"},
    [TORCH] = {"PyTorch RPC",
               {"/usr/bin/python3", "@torch_rpc.py"},
               "torch_rpc.py",
               "python3-torch"},
};

enum { S64, NIL, POOLED, S64K, S1M, A64, SW_INLINE, SW_POOLED, BUSY, BUSY_RATE };

static const struct bench_figure figures[] = {
    [S64] = {"call, 64 B", "sync_64", "us"},
    [NIL] = {"call, no bytes", "sync_null", "us"},
    [POOLED] = {"call, 64 B, pooled function", "pooled_64", "us"},
    [S64K] = {"call, 64 KiB", "sync_64k", "us"},
    [S1M] = {"call, 1 MiB", "sync_1m", "us"},
    [A64] = {"64 outstanding, 64 B", "async_64", "/s", true},
    [SW_INLINE] = {"context switches, inline function", "switches_inline", "/call"},
    [SW_POOLED] = {"context switches, pooled function", "switches_pooled", "/call"},
    [BUSY] = {"call, 64 B, busy machine", "sync_64", "us", .busy = true},
    [BUSY_RATE] = {"calls in a row, 64 B, busy machine", "rate_64", "/s", true, .busy = true},
};

#define AT_MOST(times, figure, who) BENCH_RATIO, figure, who, false, times
#define AT_LEAST(times, figure, who) BENCH_RATIO, figure, who, true, times
#define NO_LESS_THAN(value) BENCH_VALUE, 0, 0, true, value

static const struct bench_goal goals[] = {
    {"64 B, local, against raw TCP", BENCH_SAME, S64, LOCAL, AT_MOST(2.5, S64, RAW)},
    {"64 B, local, close to raw TCP", BENCH_SAME, S64, LOCAL, AT_MOST(1.25, S64, RAW)},
    {"64 B, local, against raw TCP", BENCH_SPLIT, S64, LOCAL, AT_MOST(1.0, S64, RAW)},
    {"64 B, network without spin, against raw TCP", BENCH_SPLIT, S64, NETWORK,
     AT_MOST(1.7, S64, RAW)},
    {"64 KiB, local, against raw TCP", BENCH_SPLIT, S64K, LOCAL, AT_MOST(1.6, S64K, RAW)},
    {"1 MiB, local, against raw TCP", BENCH_SPLIT, S1M, LOCAL, AT_MOST(1.6, S1M, RAW)},
    {"64 B, local, ahead of gRPC C++", BENCH_BOTH, S64, LOCAL, AT_MOST(1.0, S64, GRPC)},
    {"64 B, local, ahead of Cap'n Proto", BENCH_BOTH, S64, LOCAL, AT_MOST(1.0, S64, CAPNP)},
    {"64 B, local, ahead of Java RMI", BENCH_BOTH, S64, LOCAL, AT_MOST(1.0, S64, RMI)},
    {"64 B, local, ahead of Java RMI with no bytes", BENCH_BOTH, S64, LOCAL,
     AT_MOST(1.0, NIL, RMI)},
    {"64 B, local, ahead of PyTorch RPC", BENCH_BOTH, S64, LOCAL, AT_MOST(1.0, S64, TORCH)},
    {"no bytes, local, ahead of Java RMI", BENCH_BOTH, NIL, LOCAL, AT_MOST(1.0, NIL, RMI)},
    {"64 outstanding, local", BENCH_SAME, A64, LOCAL, NO_LESS_THAN(300000)},
    {"64 outstanding, local", BENCH_SPLIT, A64, LOCAL, NO_LESS_THAN(200000)},
    {"64 outstanding, local, against gRPC C++", BENCH_BOTH, A64, LOCAL, AT_LEAST(10, A64, GRPC)},
    {"switches that a pooled function adds, network: one each way", BENCH_SPLIT, SW_POOLED, NETWORK,
     BENCH_DIFFERENCE, SW_INLINE, NETWORK, false, 2.2},
    {"64 B, local, against raw TCP, busy machine", BENCH_BOTH, BUSY, LOCAL,
     AT_MOST(2.0, BUSY, RAW)},
    {"64 B, local, in a row against raw TCP, busy machine", BENCH_BOTH, BUSY_RATE, LOCAL,
     AT_LEAST(0.5, BUSY_RATE, RAW)},
};

int main(int argc, char **argv)
{
    bench_raw_main(argc, argv);
    rpc_tether_main(argc, argv);
    struct bench_options options = {.only = "", .rounds = 5, .seconds = 0.15};
    bench_options_read(argc, argv, &options);
    bench_results_open("rpc", options.tsv);
    bench_contest_run(
        &(struct bench_contest){
            .contestants = contestants,
            .n_contestants = LEN(contestants),
            .figures = figures,
            .n_figures = LEN(figures),
            .goals = goals,
            .n_goals = LEN(goals),
            .baseline = RAW,
            .placements = BENCH_BOTH,
        },
        &options);
    bench_results_close();
    return 0;
}
