/* Measures the cost of a remote reference and compares it with capabilities of Cap'n Proto,
 * references of PyTorch and remote objects of Java RMI. Also measures the cost of a million
 * references. lib/contest.h explains the measurement; tether.c and bench/peers have the
 * contestants.
 *
 *     rref_bench [--peers=FOLDER] [--tsv=FILE] [--rounds=N] [--seconds=S] [--only=TEXT]
 */
#include "bench/lib/contest.h"
#include "bench/lib/results.h"
#include "bench/rref/tether.h"

#define LEN(array) (sizeof(array) / sizeof(array)[0])
#define AT_LEAST(times, figure, who) BENCH_RATIO, figure, who, true, times
#define NO_MORE_THAN(value) BENCH_VALUE, 0, 0, false, value

/* ---- Beside peers ---- */

enum { LOCAL, NETWORK, CAPNP, RMI, TORCH };

static const struct bench_contestant contestants[] = {
    [LOCAL] = {"Tether (local, spin)", {"self", "contestant", "local"}},
    [NETWORK] = {"Tether (network, no spin)", {"self", "contestant", "network"}},
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

enum {
    DROP,
    DROP_UNAWAITED,
    FETCH,
    FETCH_AWAITED,
    PASS,
    PASS_ONE,
    ON_OWNER,
    LOCAL_USE,
    OWNER_MESSAGES
};

static const struct bench_figure figures[] = {
    [DROP] = {"create, drop; by 256", "create_drop", "/s", true},
    [DROP_UNAWAITED] = {"create, drop; by 256", "create_drop_unawaited", "/s", true,
                        .variant = "unawaited"},
    [FETCH] = {"create, fetch, drop; one by one", "create_fetch_drop", "/s", true},
    [FETCH_AWAITED] = {"create, fetch, drop; one by one", "create_fetch_drop_awaited", "/s", true,
                       .variant = "awaited"},
    [PASS] = {"create, pass on, drop; by 64", "create_pass_drop_64", "/s", true},
    [PASS_ONE] = {"create, pass on, drop; one by one", "create_pass_drop", "/s", true},
    [ON_OWNER] = {"create, fetch, drop; on the owner", "local", "us"},
    [LOCAL_USE] = {"fetch on the owner", "local_use", "us"},
    [OWNER_MESSAGES] = {"messages of use on the owner", "local_messages", ""},
};

static const struct bench_goal goals[] = {
    {"create and drop, local, against Cap'n Proto, awaited", BENCH_BOTH, DROP, LOCAL,
     AT_LEAST(10, DROP, CAPNP)},
    {"create and drop, local, against Cap'n Proto, unawaited", BENCH_BOTH, DROP, LOCAL,
     AT_LEAST(10, DROP_UNAWAITED, CAPNP)},
    {"create, fetch and drop, local, against Cap'n Proto, pipelined", BENCH_BOTH, FETCH, LOCAL,
     AT_LEAST(2, FETCH, CAPNP)},
    {"create, fetch and drop, local, against Cap'n Proto, awaited", BENCH_BOTH, FETCH, LOCAL,
     AT_LEAST(2, FETCH_AWAITED, CAPNP)},
    {"create, pass to a third worker and drop, local, against PyTorch", BENCH_BOTH, PASS, LOCAL,
     AT_LEAST(20, PASS, TORCH)},
    {"create, fetch and drop on the owner", BENCH_BOTH, ON_OWNER, LOCAL, NO_MORE_THAN(1)},
    {"messages of a thousand uses on the owner", BENCH_BOTH, OWNER_MESSAGES, LOCAL,
     NO_MORE_THAN(0)},
};

/* ---- Many at once ---- */

enum { FEW, MANY };

static const struct bench_contestant sizes[] = {
    [FEW] = {"1,000 live", {"self", "contestant", "local"}, .setup = "fill_thousand"},
    [MANY] = {"1 million live", {"self", "contestant", "local"}, .setup = "fill_million"},
};

enum { SIZED_DROP, OWNER_BYTES, USER_BYTES };

static const struct bench_figure sized_figures[] = {
    [SIZED_DROP] = {"create, drop among many", "create_drop", "/s", true},
    [OWNER_BYTES] = {"memory at the owner, each", "owner_bytes", "B"},
    [USER_BYTES] = {"memory at the user, each", "user_bytes", "B"},
};

static const struct bench_goal sized_goals[] = {
    {"create and drop among 1 million against 1,000", BENCH_SPLIT, SIZED_DROP, MANY,
     AT_LEAST(0.8, SIZED_DROP, FEW)},
    {"bytes at the owner beside the object, of 1 million", BENCH_SPLIT, OWNER_BYTES, MANY,
     NO_MORE_THAN(256)},
    {"bytes at the user, of 1 million", BENCH_SPLIT, USER_BYTES, MANY, NO_MORE_THAN(256)},
};

int main(int argc, char **argv)
{
    rref_tether_main(argc, argv);
    struct bench_options options = {.only = "", .rounds = 5, .seconds = 0.2};
    bench_options_read(argc, argv, &options);
    bench_results_open("rref", options.tsv);
    bench_contest_run(
        &(struct bench_contest){
            .contestants = contestants,
            .n_contestants = LEN(contestants),
            .figures = figures,
            .n_figures = LEN(figures),
            .goals = goals,
            .n_goals = LEN(goals),
            .baseline = -1,
            .placements = BENCH_BOTH,
        },
        &options);
    bench_contest_run(
        &(struct bench_contest){
            .contestants = sizes,
            .n_contestants = LEN(sizes),
            .figures = sized_figures,
            .n_figures = LEN(sized_figures),
            .goals = sized_goals,
            .n_goals = LEN(sized_goals),
            .baseline = -1,
            .placements = BENCH_SPLIT,
        },
        &options);
    bench_results_close();
    return 0;
}
