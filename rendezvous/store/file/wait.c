/* Calls of the file store that wait: how they hear of changes, sleep and wake. See space.h. */
#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/threads/cond.h"
#include "rendezvous/store/file/space_internal.h"

/* time between two checks of the file where inotify does not report every change */
#define LOOK_EVERY_MS 10

/* A waiting call. All fields are under mu. */
struct waiting {
    struct tether__list node;          /* a node of space->waiting */
    struct tether__list complete_node; /* a node of space->complete */
    struct tether__kv_waiter waiter;
    struct tether__file_space *space;
    pthread_cond_t wake;
    enum tether__kv_want want;
    const char *const *keys;
    size_t n;
    tether_buf *values; /* filled in for TETHER__KV_WANT_VALUE */
    bool done;
    tether_status status; /* result of the wait, valid once it is done */
};

/* ---- Watching the file ---------------------------------------------------------------------- */

bool tether__file_on_network(int fd)
{
    static const uint32_t network[] = {
        0x6969 /* nfs */,      0x517b /* smb */,        0xfe534d42 /* smb2 */,
        0xff534d42 /* cifs */, 0x00c36400 /* ceph */,   0x01021997 /* 9p */,
        0x65735546 /* fuse */, 0x0bd00bd0 /* lustre */, 0x47504653 /* gpfs */,
        0x73757245 /* coda */, 0x6b414653 /* afs */,
    };
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return true;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(network); i++)
        if ((uint32_t)fs.f_type == network[i])
            return true;
    return false;
}

void tether__file_watch_locked(struct tether__file_space *space)
{
    if (space->inotify_fd < 0)
        return;
    /* a path in /proc that names the open file, even if its own path leads elsewhere now */
    char path[48];
    snprintf(path, sizeof path, "/proc/self/fd/%d", space->log.fd);
    if (inotify_add_watch(space->inotify_fd, path, IN_MODIFY | IN_ATTRIB) < 0)
        space->look_every_ms = LOOK_EVERY_MS;
    else
        space->look_every_ms = tether__file_on_network(space->log.fd) ? LOOK_EVERY_MS : -1;
}

/* Starts inotify before the first wait. Without it (a user has a limited number of instances) the
 * watcher polls. */
static void start_watch_locked(struct tether__file_space *space)
{
    space->watch_tried = true;
    space->look_every_ms = LOOK_EVERY_MS;
    space->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    tether__file_watch_locked(space);
}

/* ---- Keys that calls wait for ---------------------------------------------------------------- */

/* All keys exist. The values are copied after the whole record has been applied. */
static void on_ready(struct tether__kv_waiter *waiter, tether_buf *popped)
{
    (void)popped;
    struct waiting *waiting = tether__container_of(waiter, struct waiting, waiter);
    tether__list_push_back(&waiting->space->complete, &waiting->complete_node);
}

void tether__file_wake_complete_locked(struct tether__file_space *space)
{
    for (struct tether__list *node; (node = tether__list_pop_front(&space->complete));) {
        struct waiting *waiting = tether__list_entry(node, struct waiting, complete_node);
        tether__list_init(&waiting->complete_node);
        for (size_t i = 0; waiting->values && i < waiting->n && waiting->status == TETHER_OK; i++) {
            tether_bytes value;
            if (tether__kv_get(space->kv, tether_bytes_str(waiting->keys[i]), &value))
                waiting->status = tether_buf_assign(&waiting->values[i], value);
        }
        waiting->done = true;
        pthread_cond_signal(&waiting->wake);
    }
}

/* Registers `waiting` for its keys; it may be complete at once. An error ends its wait, too. */
static void register_locked(struct tether__file_space *space, struct waiting *waiting)
{
    tether_bytes one;
    tether_bytes *keys = waiting->n <= 1 ? &one : tether__calloc(waiting->n, sizeof *keys);
    for (size_t i = 0; keys && i < waiting->n; i++)
        keys[i] = tether_bytes_str(waiting->keys[i]);
    tether_status st = TETHER_ENOMEM;
    if (keys)
        st =
            tether__kv_wait(space->kv, &waiting->waiter, waiting->want, keys, waiting->n, on_ready);
    if (keys != &one)
        tether__free(keys);
    if (st == TETHER_OK) {
        tether__file_wake_complete_locked(space);
    } else {
        waiting->status = st;
        waiting->done = true;
        pthread_cond_signal(&waiting->wake);
    }
}

void tether__file_move_waits_locked(struct tether__file_space *space, struct tether__kv *old)
{
    TETHER__LIST_FOR_EACH(node, &space->waiting)
        tether__kv_cancel(old, &tether__list_entry(node, struct waiting, node)->waiter);
    TETHER__LIST_FOR_EACH(node, &space->waiting) {
        struct waiting *waiting = tether__list_entry(node, struct waiting, node);
        if (!waiting->done)
            register_locked(space, waiting);
    }
}

/* ---- Sleeping ------------------------------------------------------------------------------- */

/* Sleeps until the file changes, until the next poll is due, or until the deadline. */
static void watch(int inotify_fd, int look_every_ms, int64_t deadline)
{
    int sleep_ms = tether__deadline_left_ms(&tether__clock_system, deadline);
    if (look_every_ms >= 0 && (sleep_ms < 0 || sleep_ms > look_every_ms))
        sleep_ms = look_every_ms;
    struct pollfd pollfd = {.fd = inotify_fd, .events = POLLIN};
    if (poll(&pollfd, 1, sleep_ms) > 0) {
        char events[4096] __attribute__((aligned(8)));
        while (read(inotify_fd, events, sizeof events) > 0) {
        }
    }
}

/* Sleeps, `mu` held, until `waiting` is done or the deadline has passed. */
static tether_status sleep_locked(struct tether__file_space *space,
                                  struct waiting *waiting,
                                  int64_t deadline,
                                  tether_error *reterr)
{
    while (!waiting->done) {
        if (space->watched) {
            if (!tether__cond_wait(&waiting->wake, &space->mu, deadline) && !waiting->done)
                return TETHER_ETIMEOUT;
            continue;
        }
        space->watched = true;
        bool watching = space->watch_tried; /* false: the watch starts now, so changes from before
                                               must be read first */
        if (!watching)
            start_watch_locked(space);
        const int inotify_fd = space->inotify_fd, look_every_ms = space->look_every_ms;
        pthread_mutex_unlock(&space->mu);
        if (watching)
            watch(inotify_fd, look_every_ms, deadline);
        tether_status st = tether__file_space_begin(space, false, deadline, reterr);
        if (st == TETHER_OK)
            tether__file_log_unlock(&space->log);
        else
            pthread_mutex_lock(&space->mu);
        space->watched = false;
        if (st != TETHER_OK && !waiting->done)
            return st;
        if (!waiting->done && tether__deadline_left_ms(&tether__clock_system, deadline) == 0)
            return TETHER_ETIMEOUT;
    }
    return waiting->status;
}

tether_status tether__file_space_wait(struct tether__file_space *space,
                                      enum tether__kv_want want,
                                      const char *const *keys,
                                      size_t n,
                                      int64_t deadline,
                                      tether_buf *values,
                                      tether_error *reterr)
{
    struct waiting waiting = {.space = space, .want = want, .keys = keys, .n = n, .values = values};
    tether_status st = tether__file_space_begin(space, false, deadline, reterr);
    if (st != TETHER_OK)
        return st;
    tether__file_log_unlock(&space->log);
    tether__cond_init(&waiting.wake);
    tether__list_init(&waiting.complete_node);
    tether__list_push_back(&space->waiting, &waiting.node);
    register_locked(space, &waiting);
    if (!waiting.done && tether__deadline_left_ms(&tether__clock_system, deadline) == 0)
        st = TETHER_ETIMEOUT;
    else
        st = sleep_locked(space, &waiting, deadline, reterr);
    tether__kv_cancel(space->kv, &waiting.waiter);
    tether__list_remove(&waiting.node);
    pthread_cond_destroy(&waiting.wake);
    if (!space->watched &&
        !tether__list_empty(&space->waiting)) /* another thread then becomes the watcher */
        pthread_cond_signal(&tether__list_entry(space->waiting.next, struct waiting, node)->wake);
    pthread_mutex_unlock(&space->mu);
    return st;
}
