/* Measures the transports: the round trip of one message between two processes.
 *
 * Transports: local (a unix socket without gRPC) and gRPC (over TCP and over a unix socket), with
 * and without spin, and raw blocking sockets. lib/contest.h explains the measurement.
 *
 *     transport_bench [--tsv=FILE] [--rounds=N] [--seconds=S] [--only=TEXT]
 */
#include <stdlib.h>
#include <string.h>

#include "bench/lib/contest.h"
#include "bench/lib/counts.h"
#include "bench/lib/raw.h"
#include "bench/lib/results.h"
#include "bench/transport/echo.h"

#define LEN(array) (sizeof(array) / sizeof(array)[0])

static const struct bench_contestant contestants[] = {
    {.name = "raw TCP", .argv = {"self", "raw", "tcp"}},
    {.name = "raw unix socket", .argv = {"self", "raw", "unix"}},
    {.name = "Tether (local, spin)", .argv = {"self", "contestant", "local", "50"}},
    {.name = "Tether (gRPC unix, spin)", .argv = {"self", "contestant", "unix", "50"}},
    {.name = "Tether (gRPC TCP, spin)", .argv = {"self", "contestant", "tcp", "50"}},
    {.name = "Tether (local)", .argv = {"self", "contestant", "local", "0"}},
    {.name = "Tether (gRPC unix)", .argv = {"self", "contestant", "unix", "0"}},
    {.name = "Tether (gRPC TCP)", .argv = {"self", "contestant", "tcp", "0"}},
};

static const struct bench_figure figures[] = {
    {.name = "there and back, 64 B", .question = "sync_64", .unit = "us"},
    {.name = "there and back, 64 KiB", .question = "sync_64k", .unit = "us"},
    {.name = "there and back, 1 MiB", .question = "sync_1m", .unit = "us"},
    {.name = "context switches of the client", .question = "switches", .unit = "/trip"},
    {.name = "gRPC batches of the client", .question = "batches", .unit = "/trip"},
};

/* Rows of counts, which do not depend on the load: `transport_bench ROW ROUNDS`. */
static const struct {
    const char *row, *who;
} counted[] = {{"local", "Tether (local)"}, {"tcp", "Tether (gRPC TCP)"}};

static void tell(const char *figure, const char *who, double value)
{
    if (value > 0)
        bench_result(&(struct bench_result){.figure = figure,
                                            .placement = "-",
                                            .who = who,
                                            .unit = "/trip",
                                            .value = bench_single(value)});
}

int main(int argc, char **argv)
{
    bench_raw_main(argc, argv);
    transport_echo_main(argc, argv);
    for (size_t i = 0; argc == 3 && i < LEN(counted); i++)
        if (strcmp(argv[1], counted[i].row) == 0) {
            transport_echo_rounds(argv[1], strtol(argv[2], NULL, 10));
            return 0;
        }
    struct bench_options options = {.only = "", .rounds = 3, .seconds = 0.2};
    bench_options_read(argc, argv, &options);
    bench_results_open("transport", options.tsv);
    bench_contest_run(&(struct bench_contest){.contestants = contestants,
                                              .n_contestants = LEN(contestants),
                                              .figures = figures,
                                              .n_figures = LEN(figures),
                                              .baseline = 0,
                                              .placements = BENCH_BOTH},
                      &options);
    for (size_t i = 0; i < LEN(counted); i++) {
        tell("instructions of the client", counted[i].who,
             bench_instructions(argv[0], counted[i].row, 1000));
        tell("system calls of both ends", counted[i].who,
             bench_system_calls(argv[0], counted[i].row, 1000));
    }
    bench_results_close();
    return 0;
}
