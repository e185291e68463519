/* --log-dir: a directory per round, a file per rank and stream. */
#ifndef TETHER_TOOLS_RUN_LOGS_H
#define TETHER_TOOLS_RUN_LOGS_H

#include <stdint.h>

#include "base/status.h"

/* Makes `dir` (and what leads to it) unless it is there; NULL: nothing to do. */
tether_status run_logs_init(const char *dir, tether_error *reterr);

/* Opens DIR/round_N/rank_R.out and .err for writing; -1 for both when `dir` is NULL. Neither
 * symbolic links below DIR are followed nor other users' files taken. */
tether_status run_logs_open(const char *dir,
                            uint64_t round,
                            int rank,
                            int *ret_out_fd,
                            int *ret_err_fd,
                            tether_error *reterr);
void run_logs_close(int out_fd, int err_fd); /* -1 is fine */

#endif
