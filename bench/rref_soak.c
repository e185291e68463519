/* Soak test of references: three workers, a process each, create objects on each other, pass
 * references to the third and release them, millions of times. Memory and files must not grow.
 *
 *     rref_soak [count]        how many rounds in all (10,000,000)
 *
 * One round: a worker makes an object on the next one, passes the reference to the one after, which
 * keeps it until KEPT others have come, and releases its own. So each is a creation, a fork and
 * two drops, and each worker is owner, parent and child all the time.
 *
 * The first twentieth (at least WARM_UP_LEAST rounds) fills caches, pools and arenas. Then, and at
 * the end, each worker waits until it holds KEPT references and others hold KEPT of its objects, no
 * more, and says what it has: bytes that Tether has allocated, and that all have; resident memory
 * that is not a file's, after the allocator gave back what it could; open files. When any of these
 * has grown by more than a hundredth, or a table of references is not empty after all references
 * are released, the program fails (1).
 *
 * The workers are this program again (posix_spawn), told by the environment; the first process
 * hosts the store, tells them through pipes what to do, and shows how far they are when stderr is a
 * terminal.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "rendezvous/store_tcp.h"
#include "rref/rref.h"

extern char **environ;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool memory_is_told = false; /* their allocators keep what is freed */
enum { KEPT = 2000, WARM_UP_LEAST = 9000 };
#else
static const bool memory_is_told = true;
enum {
    KEPT = 14000,           /* references that each keeps: far from where a table grows */
    WARM_UP_LEAST = 150000, /* rounds: each keeps as many as it ever will, several times over */
};
#endif

enum {
    WORKERS = 3,
    WINDOW = 64,          /* rounds under way at each worker */
    TELL_EVERY = 500,     /* rounds, how far it is */
    PATIENCE_MS = 120000, /* for anything at all to happen */
    LEASE_MS = 6000,
};

/* gRPC's buffers (57 KiB each) and half-empty pages of the allocator vary, independently of the
 * number of rounds. Memory that Tether itself has allocated gets no such allowance. */
#define SLACK (512u << 10)

static void die(const char *what, const char *why)
{
    fprintf(stderr, "rref_soak: %s: %s\n", what, why);
    exit(1);
}

static void check(tether_status st, const char *what, const tether_error *err)
{
    if (st != TETHER_OK)
        die(what, err->message);
}

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Memory and files of a worker. */
struct holdings {
    size_t own;       /* bytes that Tether has allocated */
    size_t allocated; /* and gRPC and the C library with it */
    size_t resident;
    int files;
};

/* ---- A worker ---- */

/* Every allocation of Tether itself, counted: no cache of the C library's hides anything. */
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
static tether_rref *kept[KEPT];
static unsigned n_kept;

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
        return tether_error_set(reterr, TETHER_EINTERNAL, "a reference came unconfirmed");
    tether_rref **place = &kept[n_kept++ % KEPT];
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
    for (int i = 0; i < KEPT; i++)
        kept[i] = tether_rref_release(kept[i]);
    return TETHER_OK;
}

static tether_agent *start_agent(int rank, const char *port)
{
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    tether_error err = {0};
    char name[16];
    snprintf(name, sizeof name, "w%d", rank);
    check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = atoi(port)), &store, &err),
          "reaching the store", &err);
    check(tether_agent_new(
              TETHER_AGENT_OPTS(.name = name, .store = store, .rank = rank, .world_size = WORKERS,
                                .threads = 1, .lease_ms = LEASE_MS, .fail_on_leaks = true),
              &agent, &err),
          "making an agent", &err);
    check(tether_agent_register_inline(agent, "make", make, NULL, &err), "make", &err);
    check(tether_agent_register_inline(agent, "keep", keep, NULL, &err), "keep", &err);
    check(tether_agent_register_inline(agent, "forget", forget, NULL, &err), "forget", &err);
    check(tether_agent_start(agent, &err), "starting", &err);
    tether_store_release(store);
    return agent;
}

/* One round; the future is done when the third worker has the reference. */
static tether_future *begin_round(const struct worker *self, tether_value *object)
{
    tether_value *message = NULL;
    tether_error err = {0};
    tether_rref *rref = tether_remote(self->agent, self->next, "make", object, PATIENCE_MS);
    check(tether_value_printf(&message, &err, "take it"), "a message", &err);
    check(tether_value_attach(message, rref, &err), "a message", &err);
    tether_future *future =
        tether_rpc_async(self->agent, self->third, "keep", message, PATIENCE_MS);
    tether_value_release(message);
    tether_rref_release(rref);
    return future;
}

static void end_round(tether_future *future)
{
    tether_error err = {0};
    check(tether_future_wait(future, PATIENCE_MS, NULL, &err), "passing a reference on", &err);
    tether_future_release(future);
}

static void run_rounds(const struct worker *self, long rounds)
{
    tether_future *under_way[WINDOW];
    tether_value *object = NULL;
    tether_error err = {0};
    check(tether_value_printf(&object, &err, "an object of some forty bytes, as it were"),
          "an object", &err);
    for (long i = 0; i < rounds + WINDOW; i++) {
        if (i >= WINDOW && i - WINDOW < rounds)
            end_round(under_way[i % WINDOW]);
        if (i < rounds)
            under_way[i % WINDOW] = begin_round(self, object);
        if (i % TELL_EVERY == TELL_EVERY - 1)
            printf("at %ld\n", i < rounds ? i + 1 : rounds);
    }
    tether_value_release(object);
    printf("ran\n");
}

/* Whether it holds `n` references, others hold `n` of its objects, and nothing is under way. */
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

/* But for gRPC's eventfds: a thread gets one, for good, when it first polls while another does. */
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

static void nap_ms(int ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* No event reports that the tables have their final size, so this polls every millisecond. */
static void settle(const struct worker *self, size_t n)
{
    for (int tries = 0; !is_settled(self->agent, n); tries++) {
        nap_ms(1);
        if (tries == PATIENCE_MS) {
            struct tether_rref_counts has = tether_rref_counts(self->agent);
            fprintf(stderr,
                    "w%d: %zu owners, %zu forks, %zu confirmed, %zu pending, %zu children\n",
                    self->rank, has.owners, has.forks, has.confirmed_users, has.pending_users,
                    has.pending_children);
            die("waiting", "references are left, or lost");
        }
    }
}

/* A link that has been idle for a third of the lease gives back what it kept for messages. */
static void tell_holdings(const struct worker *self)
{
    settle(self, KEPT);
    nap_ms(LEASE_MS / 2);
    malloc_trim(0);
    struct mallinfo2 info = mallinfo2();
    printf("has %zu %zu %zu %d\n", atomic_load(&own_bytes), info.uordblks + info.hblkhd,
           resident_bytes(), open_files());
}

/* Does what it is told, line by line, until it is told no more. */
static int worker_main(int rank)
{
    struct worker self = {.rank = rank};
    char line[64];
    tether_error err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tether_set_allocator(&own_allocator);
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(self.next, sizeof self.next, "w%d", (rank + 1) % WORKERS);
    snprintf(self.third, sizeof self.third, "w%d", (rank + 2) % WORKERS);
    self.agent = start_agent(rank, getenv("SOAK_PORT"));
    while (fgets(line, sizeof line, stdin)) {
        long rounds;
        if (sscanf(line, "run %ld", &rounds) == 1) {
            run_rounds(&self, rounds);
        } else if (strcmp(line, "forget\n") == 0) { /* on the thread that keeps */
            check(tether_rpc_sync(self.agent, self.next, "forget", NULL, PATIENCE_MS, NULL, &err),
                  "letting go", &err);
            settle(&self, 0);
            printf("forgot\n");
        } else {
            tell_holdings(&self);
        }
    }
    check(tether_agent_shutdown(self.agent, true, &err), "shutting down", &err);
    tether_agent_release(self.agent);
    return 0;
}

/* ---- The workers, as the first process sees them ---- */

struct crew_member {
    pid_t pid;
    int to;
    FILE *from;
    long done; /* rounds, of what it was told last */
    struct holdings has;
};

static struct crew_member crew[WORKERS];

static void start_worker(int rank)
{
    int to[2], from[2];
    char text[16], *argv[] = {"rref_soak", NULL};
    posix_spawn_file_actions_t actions;
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        die("making pipes", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    snprintf(text, sizeof text, "%d", rank);
    setenv("SOAK_RANK", text, 1);
    int rc = posix_spawn(&crew[rank].pid, "/proc/self/exe", &actions, NULL, argv, environ);
    if (rc != 0)
        die("starting a worker", strerror(rc));
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    crew[rank].to = to[1];
    crew[rank].from = fdopen(from[0], "re");
    setvbuf(crew[rank].from, NULL, _IONBF, 0); /* so that poll() sees all that there is */
}

static void tell(const char *line)
{
    for (int i = 0; i < WORKERS; i++)
        if (write(crew[i].to, line, strlen(line)) != (ssize_t)strlen(line))
            die("telling a worker what to do", strerror(errno));
}

/* Reads lines of all workers as they come, so that no worker fills its pipe while another one is
 * read. */
static struct crew_member *next_line(char *line, int size)
{
    struct pollfd ready[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        ready[i] = (struct pollfd){.fd = fileno(crew[i].from), .events = POLLIN};
    if (poll(ready, WORKERS, PATIENCE_MS) <= 0)
        die("waiting for the workers", "none of them gets on");
    for (int i = 0; i < WORKERS; i++)
        if (ready[i].revents) {
            if (!fgets(line, size, crew[i].from))
                die("a worker", "it has ended");
            return &crew[i];
        }
    return NULL;
}

static void show_progress(long before, long count, double began)
{
    static double shown;
    double now = now_s();
    long done = before;
    if (!isatty(STDERR_FILENO) || now - shown < 0.2)
        return;
    shown = now;
    for (int i = 0; i < WORKERS; i++)
        done += crew[i].done;
    fprintf(stderr, "\r%ld of %ld rounds, %.0f a second ", done, count,
            (double)done / (now - began));
}

/* Has every worker do what `line` says, until each has answered with `answer`. */
static void have_done(const char *line, const char *answer, long before, long count, double began)
{
    char said[128];
    tell(line);
    for (int i = 0; i < WORKERS; i++)
        crew[i].done = 0;
    for (int waiting = WORKERS; waiting > 0;) {
        struct crew_member *member = next_line(said, sizeof said);
        if (sscanf(said, "at %ld", &member->done) == 1)
            show_progress(before, count, began);
        if (strncmp(said, answer, strlen(answer)) != 0)
            continue;
        waiting--;
        sscanf(said, "has %zu %zu %zu %d", &member->has.own, &member->has.allocated,
               &member->has.resident, &member->has.files);
    }
}

static void run(long each, long before, long count, double began)
{
    char line[64];
    snprintf(line, sizeof line, "run %ld\n", each);
    have_done(line, "ran", before, count, began);
    have_done("holdings\n", "has", before, count, began);
}

/* ---- The verdict ---- */

static bool grew(size_t before, size_t after)
{
    return after > before + before / 100;
}

static void print_row(int rank, const char *what, size_t before, size_t after, const char *unit)
{
    printf("  w%d  %-22s %9zu %9zu %-5s %+6.2f %%\n", rank, what, before, after, unit,
           before ? ((double)after - (double)before) * 100 / (double)before : 0);
}

static bool compare(const struct holdings warm[WORKERS])
{
    bool bad = false;
    printf("  %-26s %9s %9s\n", "", "warmed up", "at end");
    for (int i = 0; i < WORKERS; i++) {
        const struct holdings *before = &warm[i], *after = &crew[i].has;
        if (memory_is_told) {
            print_row(i, "allocated by Tether", before->own / 1024, after->own / 1024, "KiB");
            print_row(i, "allocated by all", before->allocated / 1024, after->allocated / 1024,
                      "KiB");
            print_row(i, "resident, not of files", before->resident / 1024, after->resident / 1024,
                      "KiB");
            bad |= grew(before->own, after->own);
            bad |= grew(before->allocated + SLACK, after->allocated);
            bad |= grew(before->resident + SLACK, after->resident);
        }
        print_row(i, "open files", (size_t)before->files, (size_t)after->files, "");
        bad |= after->files > before->files;
    }
    return !bad;
}

static void end_workers(void)
{
    for (int i = 0; i < WORKERS; i++)
        close(crew[i].to);
    for (int i = 0; i < WORKERS; i++) {
        int status = 0;
        waitpid(crew[i].pid, &status, 0);
        fclose(crew[i].from);
        if (status != 0)
            die("a worker", "it did not end well");
    }
}

static int soak(long count)
{
    tether_store_server *server = NULL;
    tether_error err = {0};
    char port[16];
    struct holdings warm[WORKERS];
    check(tether_store_server_new(TETHER_STORE_SERVER_OPTS(.port = 0), &server, &err),
          "hosting a store", &err);
    snprintf(port, sizeof port, "%d", tether_store_server_port(server));
    setenv("SOAK_PORT", port, 1);
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0",
           1); /* its content counts as allocated */
    for (int i = 0; i < WORKERS; i++)
        start_worker(i);

    double began = now_s();
    long warm_up = count / 20 > WARM_UP_LEAST ? count / 20 : WARM_UP_LEAST;
    run(warm_up / WORKERS, 0, warm_up + count, began);
    for (int i = 0; i < WORKERS; i++)
        warm[i] = crew[i].has;
    run(count / WORKERS + 1, warm_up, warm_up + count, began);
    double took = now_s() - began;

    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    printf("%ld rounds after %ld to warm up, in %.0f s: %.0f a second\n", count, warm_up, took,
           (double)(count + warm_up) / took);
    bool good = compare(warm);
    have_done("forget\n", "forgot", 0, 0, 0);
    end_workers();
    tether_store_server_release(server);
    printf("%s\n", good ? "nothing has grown" : "something has grown by more than a hundredth");
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("SOAK_RANK");
    if (rank)
        return worker_main(atoi(rank));
    char *end = "";
    long count = argc > 1 ? strtol(argv[1], &end, 10) : 10000000;
    if (argc > 2 || *end || count < 1)
        die("usage", "rref_soak [count]");
    return soak(count);
}
