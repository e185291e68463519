/* Writes to a descriptor; buffers bytes only while the reader is slow. */
#include "tools/run/output/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define HIGH_WATER (256 * 1024)

static int reopen_nonblocking(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !(S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)))
        return -1;
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

tether_status run_sink_init(struct run_sink *sink,
                            uv_loop_t *loop,
                            int fd,
                            void (*drained)(void *userdata),
                            void *userdata,
                            tether_error *reterr)
{
    *sink = (struct run_sink){.fd = fd,
                              .terminal = isatty(fd) == 1,
                              .waiting = TETHER_BUF_INIT,
                              .drained = drained,
                              .userdata = userdata};
    sink->open_by = &sink->own_open_by;
    int own = reopen_nonblocking(fd);
    if (own < 0)
        return TETHER_OK;
    int rc = uv_poll_init(loop, &sink->poll, own);
    if (rc == UV_EPERM) { /* /dev/null and similar files never block */
        close(own);
        return TETHER_OK;
    }
    if (rc != 0) {
        close(own);
        return tether_error_set(reterr, TETHER_EIO, "watching descriptor %d: %s", fd,
                                uv_strerror(rc));
    }
    sink->poll.data = sink;
    sink->fd = own;
    sink->own_fd = true;
    return TETHER_OK;
}

void run_sink_share(struct run_sink *a, struct run_sink *b)
{
    struct stat at_a, at_b;
    if (fstat(a->fd, &at_a) == 0 && fstat(b->fd, &at_b) == 0 && at_a.st_dev == at_b.st_dev &&
        at_a.st_ino == at_b.st_ino)
        b->open_by = a->open_by;
}

void run_sink_take_line(struct run_sink *sink, const void *who)
{
    if (*sink->open_by && *sink->open_by != who) {
        *sink->open_by = NULL;
        run_sink_write(sink, tether_bytes_str("\n"));
    }
}

bool run_sink_idle(const struct run_sink *sink)
{
    return sink->written == sink->waiting.len;
}

bool run_sink_full(const struct run_sink *sink)
{
    return sink->waiting.len - sink->written >= HIGH_WATER;
}

/* Writes as many bytes as the descriptor accepts and returns their number. */
static size_t write_some(struct run_sink *sink, const char *data, size_t len)
{
    size_t done = 0;
    while (done < len && !sink->broken) {
        ssize_t n = write(sink->fd, data + done, len - done);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno == EAGAIN && sink->own_fd)
            break;
        else if (n == 0 || (errno != EINTR && errno != EAGAIN))
            sink->broken = true;
    }
    return sink->broken ? len : done;
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    (void)events;
    struct run_sink *sink = poll->data;
    sink->broken |= status < 0;
    size_t left = sink->waiting.len - sink->written;
    sink->written += write_some(sink, sink->waiting.data + sink->written, left);
    if (sink->was_full && !run_sink_full(sink)) {
        sink->was_full = false;
        if (sink->drained)
            sink->drained(sink->userdata);
    }
    if (!run_sink_idle(sink))
        return;
    sink->waiting.len = sink->written = 0;
    uv_poll_stop(&sink->poll);
}

void run_sink_write(struct run_sink *sink, tether_bytes bytes)
{
    if (run_sink_idle(sink)) {
        size_t done = write_some(sink, bytes.data, bytes.len);
        bytes = tether_bytes_of((const char *)bytes.data + done, bytes.len - done);
        if (bytes.len == 0)
            return;
    }
    /* Only a sink with `own_fd` comes here; the other kind has written all bytes. */
    if (sink->broken || tether_buf_append(&sink->waiting, bytes) != TETHER_OK)
        return;
    sink->was_full |= run_sink_full(sink);
    uv_poll_start(&sink->poll, UV_WRITABLE, on_writable);
}

static void on_closed(uv_handle_t *handle)
{
    struct run_sink *sink = handle->data;
    close(sink->fd);
    sink->fd = -1;
}

void run_sink_close(struct run_sink *sink)
{
    tether_buf_fini(&sink->waiting);
    sink->written = 0;
    if (sink->own_fd)
        uv_close((uv_handle_t *)&sink->poll, on_closed);
    sink->own_fd = false;
}
