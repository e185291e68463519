/* Rows of flat_bench about calls that end without an answer. */
#ifndef TETHER_BENCH_FLAT_CALLS_H
#define TETHER_BENCH_FLAT_CALLS_H

#include <stddef.h>

#include "rpc/agent.h"

/* Registers the functions that the rows call. Before the start of any worker. */
void flat_calls_register(tether_agent *agent);

/* Begins `n` calls that `to` does not answer. */
tether_future **flat_calls_begin(tether_agent *client, const char *to, size_t n, int timeout_ms);
/* Waits until they have ended, and has `to` forget them. */
void flat_calls_end(tether_future **futures, size_t n);

#endif
