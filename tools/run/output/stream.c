/* Reads the output of a worker and writes its lines to the sink, the log file and the tail. */
#include "tools/run/output/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Shared by all streams: they read on the loop thread and consume all bytes before they return. */
static char read_buffer[64 * 1024];

void run_tail_add(struct run_tail *tail, tether_bytes bytes)
{
    const char *data = bytes.data;
    size_t len = bytes.len;
    if (len > RUN_TAIL_SIZE) {
        data += len - RUN_TAIL_SIZE;
        tail->end += len - RUN_TAIL_SIZE;
        len = RUN_TAIL_SIZE;
    }
    size_t at = tail->end % RUN_TAIL_SIZE;
    size_t first = len < RUN_TAIL_SIZE - at ? len : RUN_TAIL_SIZE - at;
    memcpy(tail->bytes + at, data, first);
    memcpy(tail->bytes, data + first, len - first);
    tail->end += len;
}

static char tail_byte(const struct run_tail *tail, size_t at)
{
    return tail->bytes[at % RUN_TAIL_SIZE];
}

tether_status run_tail_lines(const struct run_tail *tail, int n, tether_buf *ret_text)
{
    size_t oldest = tail->end > RUN_TAIL_SIZE ? tail->end - RUN_TAIL_SIZE : 0;
    size_t start = tail->end;
    /* number of newlines to find: one more than lines, because the last line ends with one */
    int newlines = 0;
    while (n > 0 && start > oldest) {
        if (tail_byte(tail, start - 1) == '\n' && ++newlines > n)
            break;
        start--;
    }
    if (start == oldest && oldest > 0) /* the beginning of the oldest line has been overwritten */
        while (start < tail->end && tail_byte(tail, start++) != '\n')
            ;
    for (; start < tail->end; start++) {
        char c = tail_byte(tail, start);
        tether_status st = tether_buf_append(ret_text, tether_bytes_of(&c, 1));
        if (st != TETHER_OK)
            return st;
    }
    return TETHER_OK;
}

static void write_log(struct run_stream *stream, const char *data, size_t len)
{
    while (len > 0 && stream->log_fd >= 0) {
        ssize_t n = write(stream->log_fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        /* an error such as a full disk: stop logging, but the sink still gets the lines */
        if (n <= 0) {
            close(stream->log_fd);
            stream->log_fd = -1;
            return;
        }
        data += n;
        len -= (size_t)n;
    }
}

/* Writes the rest of the current piece and then `end` to the sink. */
static void emit(struct run_stream *stream, const char *end)
{
    size_t prefix = strlen(stream->prefix);
    bool mine = *stream->sink->open_by == stream;
    /* Another stream has ended this line: start a new one. */
    bool again = stream->shown > 0 && !mine;
    if (again && stream->shown == stream->line.len)
        return; /* all of the piece was shown already */
    tether_buf out = TETHER_BUF_INIT;
    run_sink_take_line(stream->sink, stream);
    tether_status st = TETHER_OK;
    if (mine && stream->returned && stream->shown == 0)
        st = tether_buf_append(&out, tether_bytes_str("\r"));
    if (st == TETHER_OK && again)
        st = tether_buf_append(&out, tether_bytes_of(stream->line.data, prefix));
    if (st == TETHER_OK)
        st = tether_buf_append(&out, tether_bytes_of(stream->line.data + stream->shown,
                                                     stream->line.len - stream->shown));
    if (st == TETHER_OK)
        st = tether_buf_append(&out, tether_bytes_str(end));
    if (st == TETHER_OK)
        run_sink_write(stream->sink, tether_buf_bytes(&out));
    tether_buf_fini(&out);
    stream->shown = stream->line.len;
    *stream->sink->open_by = strchr(end, '\n') ? NULL : stream;
}

static bool add_prefix(struct run_stream *stream)
{
    return tether_buf_append(&stream->line, tether_bytes_str(stream->prefix)) == TETHER_OK;
}

/* Completes the piece, which ends in a newline or a carriage return. */
static void end_piece(struct run_stream *stream, const char *end, bool newline)
{
    size_t prefix = strlen(stream->prefix);
    bool empty = stream->line.len <= prefix;
    if (newline || (!empty && stream->shown < stream->line.len))
        emit(stream, newline ? end : "");
    if (newline) {
        if (!empty)
            run_tail_add(stream->tail,
                         tether_bytes_of(stream->line.data + prefix, stream->line.len - prefix));
        run_tail_add(stream->tail, tether_bytes_str("\n"));
    }
    stream->returned = !newline && (!empty || stream->returned);
    stream->line.len = stream->shown = 0;
}

/* Ends the piece at a pending carriage return; the piece is a line if a newline follows. */
static void settle_cr(struct run_stream *stream, bool newline)
{
    stream->held_cr = false;
    end_piece(stream, newline ? "\r\n" : "", newline);
}

/* Appends to the piece; splits it when it gets too long. False: out of memory. */
static bool add(struct run_stream *stream, const char *data, size_t len)
{
    while (len > 0) {
        if (stream->line.len == 0 && !add_prefix(stream))
            return false;
        size_t room = RUN_LINE_MAX > stream->line.len ? RUN_LINE_MAX - stream->line.len : 0;
        size_t piece = len < room ? len : room;
        if (tether_buf_append(&stream->line, tether_bytes_of(data, piece)) != TETHER_OK)
            return false;
        data += piece;
        len -= piece;
        if (stream->line.len >= RUN_LINE_MAX && len > 0)
            end_piece(stream, "\n", true);
    }
    return true;
}

static void take(struct run_stream *stream, const char *data, size_t len)
{
    write_log(stream, data, len);
    while (len > 0) {
        if (stream->held_cr) {
            bool newline = *data == '\n';
            settle_cr(stream, newline);
            data += newline;
            len -= newline;
            continue;
        }
        size_t piece = 0;
        while (piece < len && data[piece] != '\n' && data[piece] != '\r')
            piece++;
        if (!add(stream, data, piece))
            return;
        data += piece;
        len -= piece;
        if (len == 0)
            break;
        if (*data == '\r')
            stream->held_cr = true;
        else if (stream->line.len > 0 || add_prefix(stream))
            end_piece(stream, "\n", true);
        data++;
        len--;
    }
    bool waits = stream->held_cr || stream->line.len > stream->shown;
    if (waits && stream->partial)
        stream->partial(stream);
}

void run_stream_show(struct run_stream *stream)
{
    if (!stream->open)
        return;
    if (stream->held_cr)
        settle_cr(stream, false);
    else if (stream->line.len > stream->shown)
        emit(stream, "");
}

static void on_closed(uv_handle_t *handle)
{
    struct run_stream *stream = handle->data;
    stream->ended(stream);
}

static void finish(struct run_stream *stream)
{
    if (!stream->open)
        return;
    stream->open = false;
    if (stream->held_cr || stream->line.len > strlen(stream->prefix) ||
        *stream->sink->open_by == stream) /* end the open line at the end of the stream */
        end_piece(stream, stream->held_cr ? "\r\n" : "\n", true);
    tether_buf_fini(&stream->line);
    if (stream->log_fd >= 0)
        close(stream->log_fd);
    stream->log_fd = -1;
    uv_close((uv_handle_t *)&stream->pipe, on_closed);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(read_buffer, sizeof read_buffer);
}

static void on_read(uv_stream_t *pipe, ssize_t n, const uv_buf_t *buf)
{
    struct run_stream *stream = pipe->data;
    if (n < 0)
        finish(stream);
    if (n <= 0)
        return;
    take(stream, buf->base, (size_t)n);
    if (run_sink_full(stream->sink)) {
        stream->paused = true;
        uv_read_stop(pipe);
    }
}

tether_status run_stream_open(struct run_stream *stream,
                              uv_loop_t *loop,
                              int fd,
                              int log_fd,
                              tether_error *reterr)
{
    stream->log_fd = log_fd;
    stream->line = TETHER_BUF_INIT;
    stream->shown = 0;
    stream->returned = stream->held_cr = false;
    stream->open = true;
    stream->paused = false;
    uv_pipe_init(loop, &stream->pipe, 0);
    stream->pipe.data = stream;
    int rc = uv_pipe_open(&stream->pipe, fd);
    if (rc != 0)
        close(fd);
    if (rc == 0)
        rc = uv_read_start((uv_stream_t *)&stream->pipe, on_alloc, on_read);
    if (rc == 0)
        return TETHER_OK;
    finish(stream);
    return tether_error_set(reterr, TETHER_EIO, "reading a worker's output: %s", uv_strerror(rc));
}

void run_stream_resume(struct run_stream *stream)
{
    if (!stream->open || !stream->paused || run_sink_full(stream->sink))
        return;
    stream->paused = false;
    uv_read_start((uv_stream_t *)&stream->pipe, on_alloc, on_read);
}

void run_stream_end(struct run_stream *stream)
{
    int fd = -1;
    if (!stream->open)
        return;
    /* Read a megabyte at most, which is the largest pipe. Do not wait for a process that writes
     * more now. */
    if (uv_fileno((uv_handle_t *)&stream->pipe, &fd) == 0)
        for (int i = 0; i < 16; i++) {
            ssize_t n = read(fd, read_buffer, sizeof read_buffer);
            if (n <= 0)
                break;
            take(stream, read_buffer, (size_t)n);
        }
    finish(stream);
}
