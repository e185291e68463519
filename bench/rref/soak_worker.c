/* A worker of rref_soak: creates objects on the next worker, passes references to the third, keeps
 * those that it receives, and measures its own memory and files. */
#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "bench/rref/soak.h"
#include "rendezvous/store_tcp.h"
#include "rref/rref.h"

enum {
    WINDOW = 64,        /* rounds under way at each worker */
    REPORT_EVERY = 500, /* rounds between two progress lines */
    LEASE_MS = 30000,
};

/* Bytes that Tether itself has allocated. Counted at each call, so caches of the C library don't
 * matter. */
static _Atomic size_t own_bytes;

static void *own_malloc(void *userdata, size_t size)
{
    (void)userdata;
    void *ptr = malloc(size);
    atomic_fetch_add_explicit(&own_bytes, malloc_usable_size(ptr), memory_order_relaxed);
    return ptr;
}

static void *own_realloc(void *userdata, void *ptr, size_t size)
{
    (void)userdata;
    size_t before = malloc_usable_size(ptr);
    void *moved = realloc(ptr, size);
    if (moved)
        atomic_fetch_add_explicit(&own_bytes, malloc_usable_size(moved) - before,
                                  memory_order_relaxed);
    return moved;
}

static void own_free(void *userdata, void *ptr)
{
    (void)userdata;
    atomic_fetch_sub_explicit(&own_bytes, malloc_usable_size(ptr), memory_order_relaxed);
    free(ptr);
}

static const struct tether_allocator own_allocator = {own_malloc, own_realloc, own_free, NULL};

struct worker {
    int rank;
    tether_agent *agent;
    char next[16], third[16]; /* names */
};

/* References that others have passed to this worker; the functions run on one thread. */
static tether_rref *received[SOAK_KEPT];
static unsigned n_received;

static tether_status make(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)reterr;
    *ret_value = tether_value_retain((tether_value *)arg);
    return TETHER_OK;
}

static tether_status keep(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)userdata, (void)ret_value;
    tether_rref *rref = tether_value_rref(arg, 0);
    if (!rref || !tether_rref_confirmed_by_owner(rref))
        return tether_error_set(reterr, TETHER_EINTERNAL, "received an unconfirmed reference");
    tether_rref **place = &received[n_received++ % SOAK_KEPT];
    tether_rref_release(*place);
    *place = tether_rref_retain(rref);
    return TETHER_OK;
}

static tether_status forget(void *userdata,
                            const tether_value *arg,
                            tether_value **ret_value,
                            tether_error *reterr)
{
    (void)userdata, (void)arg, (void)ret_value, (void)reterr;
    for (int i = 0; i < SOAK_KEPT; i++)
        received[i] = tether_rref_release(received[i]);
    return TETHER_OK;
}

static tether_agent *start_agent(int rank, const char *port)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    char name[16];
    snprintf(name, sizeof name, "w%d", rank);
    soak_check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = atoi(port)), &store, &err),
               "reaching the store", &err);
    soak_check(tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .rank = rank,
                                                  .world_size = SOAK_WORKERS, .threads = 1,
                                                  .lease_ms = LEASE_MS, .fail_on_leaks = true),
                                &agent, &err),
               "making an agent", &err);
    soak_check(tether_agent_register_inline(agent, "make", make, NULL, &err), "make", &err);
    soak_check(tether_agent_register_inline(agent, "keep", keep, NULL, &err), "keep", &err);
    soak_check(tether_agent_register_inline(agent, "forget", forget, NULL, &err), "forget", &err);
    soak_check(tether_agent_start(agent, &err), "starting", &err);
    tether_store_release(store);
    return agent;
}

/* Starts a round; the future is finished when the third worker has the reference. */
static tether_future *begin_round(const struct worker *self, tether_value *object)
{
    tether_value *message = NULL;
    tether_error err = {0};
    tether_rref *rref = tether_remote(self->agent, self->next, "make", object, SOAK_TIMEOUT_MS);
    soak_check(tether_value_printf(&message, &err, "take it"), "a message", &err);
    soak_check(tether_value_attach(message, rref, &err), "a message", &err);
    tether_future *future =
        tether_rpc_async(self->agent, self->third, "keep", message, SOAK_TIMEOUT_MS);
    tether_value_release(message);
    tether_rref_release(rref);
    return future;
}

static void end_round(tether_future *future)
{
    tether_error err = {0};
    soak_check(tether_future_wait(future, SOAK_TIMEOUT_MS, NULL, &err), "passing a reference on",
               &err);
    tether_future_release(future);
}

static void run_rounds(const struct worker *self, long rounds)
{
    tether_future *under_way[WINDOW];
    tether_value *object = NULL;
    tether_error err = {0};
    soak_check(tether_value_printf(&object, &err, "an object of about forty bytes for a test"),
               "an object", &err);
    for (long i = 0; i < rounds + WINDOW; i++) {
        if (i >= WINDOW && i - WINDOW < rounds)
            end_round(under_way[i % WINDOW]);
        if (i < rounds)
            under_way[i % WINDOW] = begin_round(self, object);
        if (i % REPORT_EVERY == REPORT_EVERY - 1)
            printf("at %ld\n", i < rounds ? i + 1 : rounds);
    }
    tether_value_release(object);
    printf("ran\n");
}

/* Whether the worker holds `n` references, others hold `n` of its objects, and none is pending. */
static bool is_settled(tether_agent *agent, size_t n)
{
    struct tether_rref_counts has = tether_rref_counts(agent);
    return has.owners == n && has.forks == n && has.confirmed_users == n && !has.pending_owners &&
           !has.pending_users && !has.broken_users && !has.pending_children;
}

static size_t resident_bytes(void)
{
    char line[128];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %zu", &kib);
    if (status)
        fclose(status);
    return kib * 1024;
}

/* Leaves out gRPC's eventfds: a thread keeps one for ever once it has polled beside another. */
static bool counts_as_open(int folder, const char *name)
{
    char target[64] = "";
    return name[0] != '.' && readlinkat(folder, name, target, sizeof target - 1) > 0 &&
           strcmp(target, "anon_inode:[eventfd]") != 0;
}

static int open_files(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += counts_as_open(dirfd(folder), entry->d_name);
    if (folder)
        closedir(folder);
    return n - 1; /* the folder itself */
}

static void sleep_ms(int ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* No event reports that the tables have their final size, so this polls every millisecond. */
static void settle(const struct worker *self, size_t n)
{
    for (int tries = 0; !is_settled(self->agent, n); tries++) {
        sleep_ms(1);
        if (tries == SOAK_TIMEOUT_MS) {
            struct tether_rref_counts has = tether_rref_counts(self->agent);
            fprintf(stderr,
                    "w%d: %zu owners, %zu forks, %zu confirmed, %zu pending, %zu children\n",
                    self->rank, has.owners, has.forks, has.confirmed_users, has.pending_users,
                    has.pending_children);
            soak_die("waiting", "the counts of references are wrong");
        }
    }
}

/* Sleeps first, because a link frees its spare buffers after a third of the lease without
 * traffic. */
static void report_usage(const struct worker *self)
{
    settle(self, SOAK_KEPT);
    sleep_ms(LEASE_MS / 2);
    malloc_trim(0);
    struct mallinfo2 info = mallinfo2();
    printf("has %zu %zu %zu %d\n", atomic_load(&own_bytes), info.uordblks + info.hblkhd,
           resident_bytes(), open_files());
}

int soak_worker_main(int rank)
{
    struct worker self = {.rank = rank};
    char line[64];
    tether_error err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tether_set_allocator(&own_allocator);
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(self.next, sizeof self.next, "w%d", (rank + 1) % SOAK_WORKERS);
    snprintf(self.third, sizeof self.third, "w%d", (rank + 2) % SOAK_WORKERS);
    self.agent = start_agent(rank, getenv("SOAK_PORT"));
    while (fgets(line, sizeof line, stdin)) {
        long rounds;
        if (sscanf(line, "run %ld", &rounds) == 1) {
            run_rounds(&self, rounds);
        } else if (strcmp(line, "forget\n") == 0) { /* on the thread that runs "keep" */
            soak_check(
                tether_rpc_sync(self.agent, self.next, "forget", NULL, SOAK_TIMEOUT_MS, NULL, &err),
                "releasing references", &err);
            settle(&self, 0);
            printf("forgot\n");
        } else {
            report_usage(&self);
        }
    }
    soak_check(tether_agent_shutdown(self.agent, true, &err), "shutting down", &err);
    tether_agent_release(self.agent);
    return 0;
}
