/* What the transport costs: one message there and back between two processes, over TCP and unix
 * sockets, with the spin off and on, beside raw blocking sockets. lib/contest.h tells how they are
 * measured.
 *
 *     transport_bench [--tsv=FILE] [--rounds=N] [--seconds=S] [--only=TEXT]
 */
#include <stdlib.h>
#include <string.h>

#include "bench/lib/contest.h"
#include "bench/lib/counts.h"
#include "bench/lib/raw.h"
#include "bench/lib/results.h"
#include "bench/transport_echo.h"

#define LEN(array) (sizeof(array) / sizeof(array)[0])

static const struct bench_contestant contestants[] = {
    {.name = "raw TCP", .argv = {"self", "raw", "tcp"}},
    {.name = "raw unix socket", .argv = {"self", "raw", "unix"}},
    {.name = "Tether (unix, spin)", .argv = {"self", "contestant", "unix", "50"}},
    {.name = "Tether (TCP, spin)", .argv = {"self", "contestant", "tcp", "50"}},
    {.name = "Tether (unix)", .argv = {"self", "contestant", "unix", "0"}},
    {.name = "Tether (TCP)", .argv = {"self", "contestant", "tcp", "0"}},
};

static const struct bench_figure figures[] = {
    {.name = "there and back, 64 B", .question = "sync_64", .unit = "us"},
    {.name = "there and back, 64 KiB", .question = "sync_64k", .unit = "us"},
    {.name = "there and back, 1 MiB", .question = "sync_1m", .unit = "us"},
    {.name = "context switches of the client", .question = "switches", .unit = "/trip"},
    {.name = "gRPC batches of the client", .question = "batches", .unit = "/trip"},
};

int main(int argc, char **argv)
{
    bench_raw_main(argc, argv);
    transport_echo_main(argc, argv);
    if (argc == 3 && strcmp(argv[1], "rounds") == 0) {
        transport_echo_rounds(strtol(argv[2], NULL, 10));
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
    double instructions = bench_instructions(argv[0], "rounds", 1000);
    if (instructions > 0)
        bench_result(&(struct bench_result){.figure = "instructions of the client",
                                            .placement = "-",
                                            .who = "Tether (TCP)",
                                            .unit = "/trip",
                                            .value = bench_single(instructions)});
    bench_results_close();
    return 0;
}
