/* The table at the end: how each worker of this node did, and what the first that failed said last.
 */
#ifndef TETHER_TOOLS_RUN_SUMMARY_H
#define TETHER_TOOLS_RUN_SUMMARY_H

#include "base/bytes.h"
#include "tools/run/crew.h"

/* Appends it to `ret_text`; nothing when no worker was ever started. */
tether_status run_summary(const struct run_crew *crew, int tail_lines, tether_buf *ret_text);

#endif
