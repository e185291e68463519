/* The story of `./dev demo`, as worker 0 tells it. */
#ifndef TETHER_EXAMPLES_DEMO_STORY_H
#define TETHER_EXAMPLES_DEMO_STORY_H

#include "rref/rref.h"

#define DEMO_LEASE_MS 1500

/* Starts the clock of the printed times. */
void story_begin(void);

/* Prints a line of the story with the time. */
void story_says(const char *format, ...) TETHER_PRINTF(1, 2);

/* Prints an error and ends the process with exit code 1. */
_Noreturn void story_fails(const char *what, const tether_error *err);

/* Runs the story on worker 0 of four. `inspect` is the path of tether-inspect; `dot_file` (may be
 * NULL) gets the graph of references for Graphviz. */
void story_tell(tether_agent *agent, char *inspect, const char *dot_file);

#endif
