/* One output stream of one worker: from its pipe, line by line with the rank in front, to a sink;
 * byte by byte to its log file; and its last lines kept for the end.
 *
 * Happy path: open() starts reading; every whole line goes out in one piece, so that lines of
 * different workers never mix; `ended` is called at end of file. A line longer than
 * RUN_LINE_MAX goes out in pieces of that size, each a line of its own. While the sink is full the
 * stream does not read, so that the worker waits once its pipe is full. Loop thread only.
 *
 * Progress bars and prompts: a carriage return ends a piece of a line, which goes out at once and
 * is written over by the next one, with the prefix before it again. Text without
 * either end is shown when the owner calls show(), a moment after `partial` was called. The next
 * writer ends that line first; the rest of it becomes a new line.
 */
#ifndef TETHER_TOOLS_RUN_STREAM_H
#define TETHER_TOOLS_RUN_STREAM_H

#include <stdbool.h>
#include <uv.h>

#include "base/bytes.h"
#include "tools/run/sink.h"

#define RUN_LINE_MAX (64 * 1024)
#define RUN_TAIL_SIZE (32 * 1024)

/* The last lines of a worker, both streams together. Zeroed memory is an empty one. */
struct run_tail {
    char bytes[RUN_TAIL_SIZE];
    size_t end; /* bytes ever put in; the last RUN_TAIL_SIZE of them are there */
};

void run_tail_add(struct run_tail *tail, tether_bytes bytes);

/* The last `n` whole lines, each with its newline, appended to `ret_text`. */
tether_status run_tail_lines(const struct run_tail *tail, int n, tether_buf *ret_text);

struct run_stream {
    uv_pipe_t pipe;
    bool open;
    bool paused;
    char prefix[48]; /* before every line; may be empty */
    struct run_sink *sink;
    struct run_tail *tail;
    int log_fd;      /* -1: no log file, or it could not be written to */
    tether_buf line; /* the piece that has no end yet, behind the prefix */
    size_t shown;    /* bytes of `line` that have gone out */
    bool returned;   /* `line` is to be written over what is there */
    bool held_cr;    /* a carriage return came last: a newline may follow */
    void (*partial)(struct run_stream *stream); /* something waits for show(); may be NULL */
    void (*ended)(struct run_stream *stream);
};

/* Reads from `fd` (TAKEN, also on error). `log_fd` is TAKEN too; -1 for none. `ended` may free
 * the stream: it is called once, when the pipe is closed for good. */
tether_status run_stream_open(struct run_stream *stream,
                              uv_loop_t *loop,
                              int fd,
                              int log_fd,
                              tether_error *reterr);

/* Sends out what there is of a line. */
void run_stream_show(struct run_stream *stream);

/* Reads on after its sink was full. */
void run_stream_resume(struct run_stream *stream);

/* Reads what there is now and ends the stream, whoever still holds the other end. */
void run_stream_end(struct run_stream *stream);

#endif
