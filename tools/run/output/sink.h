/* A sink of output lines: standard output or standard error of the launcher.
 *
 * Happy path: write() passes bytes on at once. When the reader is slow (a pager, a paused
 * terminal), the bytes are buffered and the loop writes them later. While full() is true, a stream
 * stops reading until `drained` is called. So a slow reader delays the workers but never the
 * launcher, which continues with signals and heartbeats.
 *
 * A pipe or terminal is opened again with O_NONBLOCK, because setting the flag on the inherited
 * descriptor would affect all processes that share it. A regular file is used as it is. After the
 * reader has closed (EPIPE), output is dropped. Loop thread only.
 */
#ifndef TETHER_TOOLS_RUN_OUTPUT_SINK_H
#define TETHER_TOOLS_RUN_OUTPUT_SINK_H

#include <stdbool.h>
#include <uv.h>

#include "base/bytes.h"

struct run_sink {
    int fd;
    bool own_fd;   /* the descriptor was opened by init() with O_NONBLOCK, so it can be polled */
    bool terminal; /* the sink is a terminal */
    bool broken;   /* the reader has closed its end */
    bool was_full;
    /* The stream whose last line has no newline yet; NULL: none. Two sinks of one terminal share
     * this (run_sink_share()). */
    const void **open_by;
    const void *own_open_by;
    tether_buf waiting;
    size_t written; /* how many bytes of `waiting` have been written */
    uv_poll_t poll; /* watches the descriptor while bytes wait; valid if own_fd */
    void (*drained)(void *userdata);
    void *userdata;
};

/* `drained` (may be NULL) is called on the loop when a full sink has room again. */
tether_status run_sink_init(struct run_sink *sink,
                            uv_loop_t *loop,
                            int fd,
                            void (*drained)(void *userdata),
                            void *userdata,
                            tether_error *reterr);

/* Makes both sinks track the same open line if they write to the same file. */
void run_sink_share(struct run_sink *a, struct run_sink *b);

/* Call before `who` writes: ends a line that another stream has left open. */
void run_sink_take_line(struct run_sink *sink, const void *who);

/* Writes or buffers a copy of `bytes`. Drops them when out of memory. */
void run_sink_write(struct run_sink *sink, tether_bytes bytes);

/* Whether the buffer is so full that streams should stop reading; whether it is empty. */
bool run_sink_full(const struct run_sink *sink);
bool run_sink_idle(const struct run_sink *sink);

/* Closes the descriptor. Run the loop once more before you free `sink`. */
void run_sink_close(struct run_sink *sink);

#endif
