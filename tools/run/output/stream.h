/* One output stream of one worker: reads its pipe, writes each line with a rank prefix to a sink,
 * copies all bytes to a log file, and keeps the last lines for the summary.
 *
 * Happy path: open() starts reading; each whole line is written at once, so that lines of different
 * workers do not mix; `ended` is called at end of file. A line longer than RUN_LINE_MAX is split
 * into lines of that size. While the sink is full the stream does not read, so that the worker
 * blocks once its pipe is full. Loop thread only.
 *
 * Progress bars and prompts: a carriage return ends a piece of a line, which is written at once;
 * the next piece overwrites it, again with the prefix. Text that ends in neither is written when
 * the owner calls show(), a moment after `partial` was called. The next stream that writes ends
 * that line first; the rest becomes a new line.
 */
#ifndef TETHER_TOOLS_RUN_OUTPUT_STREAM_H
#define TETHER_TOOLS_RUN_OUTPUT_STREAM_H

#include <stdbool.h>
#include <uv.h>

#include "base/bytes.h"
#include "tools/run/output/sink.h"

#define RUN_LINE_MAX (64 * 1024)
#define RUN_TAIL_SIZE (32 * 1024)

/* The last lines of a worker, of both streams. Zeroed memory is an empty tail. */
struct run_tail {
    char bytes[RUN_TAIL_SIZE];
    size_t end; /* number of bytes added so far; the last RUN_TAIL_SIZE are kept */
};

void run_tail_add(struct run_tail *tail, tether_bytes bytes);

/* Appends the last `n` whole lines, each with its newline, to `ret_text`. */
tether_status run_tail_lines(const struct run_tail *tail, int n, tether_buf *ret_text);

struct run_stream {
    uv_pipe_t pipe;
    bool open;
    bool paused;
    char prefix[48]; /* put before every line; may be empty */
    struct run_sink *sink;
    struct run_tail *tail;
    int log_fd;      /* -1: no log file, or writing to it has failed */
    tether_buf line; /* the prefix and the piece that is not complete yet */
    size_t shown;    /* how many bytes of `line` have been written to the sink */
    bool returned;   /* a carriage return comes before `line`, which overwrites the piece before */
    bool held_cr;    /* the last byte was a carriage return; a newline may follow */
    /* Called when there is an incomplete line to show(). May be NULL. */
    void (*partial)(struct run_stream *stream);
    void (*ended)(struct run_stream *stream);
};

/* Starts reading `fd` (TAKEN, also on error). `log_fd` is TAKEN too; -1: none. `ended` is called
 * once, when the pipe is closed, and may free the stream. */
tether_status run_stream_open(struct run_stream *stream,
                              uv_loop_t *loop,
                              int fd,
                              int log_fd,
                              tether_error *reterr);

/* Writes the incomplete line to the sink. */
void run_stream_show(struct run_stream *stream);

/* Continues to read after the sink was full. */
void run_stream_resume(struct run_stream *stream);

/* Reads the bytes that are in the pipe and ends the stream, even if a process still has the pipe
 * open. */
void run_stream_end(struct run_stream *stream);

#endif
