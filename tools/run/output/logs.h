/* --log-dir: a directory for each round, with a file for each rank and stream. */
#ifndef TETHER_TOOLS_RUN_OUTPUT_LOGS_H
#define TETHER_TOOLS_RUN_OUTPUT_LOGS_H

#include <stdint.h>

#include "base/status.h"

/* Makes `dir` and its parents unless they exist. NULL: does nothing. */
tether_status run_logs_init(const char *dir, tether_error *reterr);

/* Opens DIR/round_N/rank_R.out and .err for writing; -1 for both when `dir` is NULL. Refuses
 * symbolic links below DIR and files of other users. */
tether_status run_logs_open(const char *dir,
                            uint64_t round,
                            int rank,
                            int *ret_out_fd,
                            int *ret_err_fd,
                            tether_error *reterr);
void run_logs_close(int out_fd, int err_fd); /* -1 means no file */

#endif
