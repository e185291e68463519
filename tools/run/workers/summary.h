/* The table at the end: the result of each worker of this node, and the last lines of the first one
 * that failed.
 */
#ifndef TETHER_TOOLS_RUN_WORKERS_SUMMARY_H
#define TETHER_TOOLS_RUN_WORKERS_SUMMARY_H

#include "base/bytes.h"
#include "tools/run/workers/crew.h"

/* Appends the summary to `ret_text`; nothing when no worker was started. */
tether_status run_summary(const struct run_crew *crew, int tail_lines, tether_buf *ret_text);

#endif
