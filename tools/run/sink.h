/* Where lines go out: standard output or standard error of the launcher.
 *
 * Happy path: write() passes bytes on at once. When the reader is slow (a pager, a paused terminal)
 * they wait in memory, the loop writes them when there is room, and `full()` tells whoever produces
 * them to pause until `drained` is called: so a slow reader slows the workers down, and never the
 * launcher, which goes on serving signals and heartbeats.
 *
 * A pipe or terminal is opened anew, without blocking, since O_NONBLOCK on the descriptor that we
 * were given would change it for everybody who shares it. A regular file is written to as it is.
 * When the reader has gone (EPIPE) what is written is dropped. Loop thread only.
 */
#ifndef TETHER_TOOLS_RUN_SINK_H
#define TETHER_TOOLS_RUN_SINK_H

#include <stdbool.h>
#include <uv.h>

#include "base/bytes.h"

struct run_sink {
    int fd;
    bool own_fd;   /* opened anew: does not block, may be polled */
    bool terminal; /* for people */
    bool broken;   /* nobody reads any more */
    bool was_full;
    /* The stream whose line has no end yet; NULL: none. Two sinks of one terminal share it
     * (run_sink_share()). */
    const void **open_by;
    const void *own_open_by;
    tether_buf waiting;
    size_t written; /* of `waiting` */
    uv_poll_t poll; /* valid with own_fd */
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

/* Makes both keep track of the same line, if they are the same file. */
void run_sink_share(struct run_sink *a, struct run_sink *b);

/* Before `who` writes: ends the line that somebody else has left open. */
void run_sink_take_line(struct run_sink *sink, const void *who);

/* Takes a copy of `bytes`; without memory for it they are dropped. */
void run_sink_write(struct run_sink *sink, tether_bytes bytes);

/* Whether so much waits that producers should pause; whether nothing waits. */
bool run_sink_full(const struct run_sink *sink);
bool run_sink_idle(const struct run_sink *sink);

/* Closes what init opened; the loop must run once more before `sink` goes away. */
void run_sink_close(struct run_sink *sink);

#endif
