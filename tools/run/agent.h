/* The state machine of the launcher: joins a round, runs the workers, and reacts to events until
 * there is an exit code.
 *
 *            +--------- restart, reform ---------+
 *            v                                   |
 *     JOINING --round--> RUNNING --verdict--> (crew empty) --succeeded, failed--> ENDING --> exit
 *        |                  |                                                       ^
 *        +---- error -------+---- signal, store lost, worker can't be started ------+
 *
 * One libuv loop on the main thread handles all events: signals, exits and output of workers,
 * timers, and the results of the node's blocking calls, which run on libuv's pool (node.h). No
 * locks.
 */
#ifndef TETHER_TOOLS_RUN_AGENT_H
#define TETHER_TOOLS_RUN_AGENT_H

#include "tools/run/options/options.h"

/* Exit codes, as --help has them. */
enum run_exit {
    RUN_EXIT_OK = 0,
    RUN_EXIT_WORKER = 1,
    RUN_EXIT_USAGE = 2,
    RUN_EXIT_TOO_FEW = 3,
    RUN_EXIT_CLOSED = 4,
    RUN_EXIT_STORE = 5,
    RUN_EXIT_SYSTEM = 6,
    RUN_EXIT_SIGNAL = 128,
};

/* Runs the launcher and returns its exit code. Call it once. */
int run_agent(const struct run_options *options);

#endif
