/* tether-inspect with a group of real processes: workers, objects and their holders, workers that
 * do not answer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/tools/launch.h"

enum { HELD, INSPECTED, LOOKED, DONE };

#define RANKS 3
#define SITE_AT 16 /* in the page, behind the id of the object */

static const tether_type gauge_type = {.name = "gauge", .destroy = free};

/* The page that the test shares with the members. */
struct page {
    char object[16];
    char peers[RANKS][1200]; /* that each member's metrics name after many inspections */
};

static struct page *page_of(struct tether_test_world *world)
{
    _Static_assert(sizeof(struct page) <= sizeof world->page, "the page is too small");
    return (struct page *)world->page;
}

static tether_status make(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg;
    return tether_value_new_object(&gauge_type, malloc(1), ret, err);
}

static tether_rref *held;

static tether_status keep(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)ret, (void)err;
    held = tether_rref_retain(tether_value_rref(arg, 0));
    return TETHER_OK;
}

static void check(tether_status status, const tether_error *err)
{
    if (status != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(status), err->message);
}

/* Notes the peers that the worker's metrics name, each once. */
static void note_peers(tether_agent *agent, char *names, size_t size)
{
    tether_buf text = TETHER_BUF_INIT;
    assert_int_equal(tether_agent_metrics(agent, &text), TETHER_OK);
    assert_int_equal(tether_buf_append(&text, tether_bytes_of("", 1)), TETHER_OK);
    for (char *at = text.data, *end; (at = strstr(at, "{peer=\"")); at = end + 1) {
        at += strlen("{peer=");
        end = strchr(at, '}');
        *end = '\0';
        if (!strstr(names, at) && strlen(names) + strlen(at) < size)
            strcat(names, at);
    }
    tether_buf_fini(&text);
}

/* A static group. Worker 1 owns an object that workers 0 and 2 hold. `arg`: the store's port. */
TETHER_PROC_ROLE(member)
{
    tether_error err = {0};
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = atoi(self->arg)), &store, &err), &err);
    check(tether_agent_new(TETHER_AGENT_OPTS(.store = store, .rank = rank, .world_size = RANKS,
                                             .token = "sesame", .fail_on_leaks = true),
                           &agent, &err),
          &err);
    check(tether_agent_register_inline(agent, "make", make, NULL, &err), &err);
    check(tether_agent_register_inline(agent, "keep", keep, NULL, &err), &err);
    check(tether_agent_start(agent, &err), &err);
    if (rank == 0) {
        tether_value *arg = NULL;
        snprintf(self->world->page + SITE_AT, 64, "%s:%d", __FILE__, __LINE__ + 1);
        held = tether_remote(agent, "worker1", "make", NULL, TETHER_DEFAULT_MS);
        check(tether_value_printf(&arg, &err, "here"), &err);
        check(tether_value_attach(arg, held, &err), &err);
        check(tether_rpc_sync(agent, "worker2", "keep", arg, TETHER_DEFAULT_MS, NULL, &err), &err);
        tether_value_release(arg);
        snprintf(page_of(self->world)->object, sizeof page_of(self->world)->object, "0.%u.1",
                 tether_rref_get_id(held).incarnation);
        tether_test_mark(self->world, HELD);
    }
    tether_test_await_mark(self->world, INSPECTED, 1);
    note_peers(agent, page_of(self->world)->peers[rank], sizeof page_of(self->world)->peers[rank]);
    tether_test_mark(self->world, LOOKED);
    tether_test_await_mark(self->world, DONE, 1);
    tether_rref_release(held);
    /* Observers must not delay the shutdown. */
    check(tether_agent_shutdown(agent, true, &err), &err);
    tether_agent_release(agent);
    tether_store_release(store);
}

struct scenery {
    tether_store_server *server;
    struct tether_test_procs *procs;
    char store[64]; /* "--store=..." */
};

static int setup(void **state)
{
    static struct scenery scenery;
    static char port[8];
    tether_error err = {0};
    check(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &scenery.server, &err), &err);
    snprintf(port, sizeof port, "%d", tether_store_server_port(scenery.server));
    snprintf(scenery.store, sizeof scenery.store, "--store=127.0.0.1:%s", port);
    scenery.procs = tether_test_procs_start(member, .ranks = RANKS, .arg = port);
    tether_test_await_mark(scenery.procs->world, HELD, 1);
    setenv("TETHER_TOKEN", "sesame", 1);
    *state = &scenery;
    return 0;
}

static int teardown(void **state)
{
    struct scenery *scenery = *state;
    tether_test_mark(scenery->procs->world, INSPECTED);
    tether_test_mark(scenery->procs->world, DONE);
    tether_test_procs_end(scenery->procs);
    tether_store_server_release(scenery->server);
    return 0;
}

/* A busy machine may take longer than the default of 3 s to answer. */
#define PATIENTLY "--timeout=50000"

/* Runs tether-inspect, asserts its exit code and returns its output. A time-out in `a` or `b`
 * replaces the long one. */
static char *inspect(struct scenery *scenery, int exit_code, const char *a, const char *b)
{
    struct tether_test_child *child = tether_test_child_start(
        (const char *const[]){"tools/tether-inspect", scenery->store, PATIENTLY, a, b, NULL});
    char *output = await_exit(child, exit_code);
    tether_test_child_free(child);
    return output;
}

/* Returns `pattern` with OBJECT replaced by the object's id. Valid until the next call. */
static const char *naming(const struct scenery *scenery, const char *pattern)
{
    static char text[256];
    const char *at = strstr(pattern, "OBJECT");
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - pattern), pattern,
             page_of(scenery->procs->world)->object, at + strlen("OBJECT"));
    return text;
}

static void inspect_shows_objects_and_their_holders(void **state)
{
    struct scenery *scenery = *state;
    char pid[32], *output = inspect(scenery, 0, NULL, NULL);
    has(output, "group tether: 3 workers\n");
    snprintf(pid, sizeof pid, " %d ", atomic_load(&scenery->procs->world->pids[1]));
    has(output, pid);
    has(output, naming(scenery, "  OBJECT        gauge        worker1          ready "));
    has(output, "worker0, worker2\n");
    has(output, scenery->procs->world->page + SITE_AT);
    has_not(output, "that no answer contains");
    free(output);

    output = inspect(scenery, 0, "--tree", NULL);
    has(output,
        naming(scenery, "worker0\nworker1\n └── gauge OBJECT ◀── worker0, worker2\nworker2\n"));
    free(output);
}

static void inspect_prints_json_and_dot(void **state)
{
    char *output = inspect(*state, 0, "--json", NULL);
    has(output, "{\"groups\":[{\"path\":\"tether\",\"workers\":[{\"name\":\"worker0\",\"id\":0,");
    has(output,
        naming(*state, "\"owners\":[{\"id\":\"OBJECT\",\"type\":\"gauge\",\"state\":\"ready\","));
    has(output, "\"holders\":[\"worker0\",\"worker2\"]}]");
    has(output, naming(*state, "\"users\":[{\"id\":\"OBJECT\",\"owner\":\"worker1\","));
    free(output);

    output = inspect(*state, 0, "--dot", NULL);
    has(output, "digraph tether {\n");
    has(output, naming(*state,
                       "  \"tether/worker2\" -> \"tether/worker1/OBJECT\" [style=solid, "
                       "color=black];\n"));
    free(output);
}

static void inspect_names_worker_when_it_does_not_answer(void **state)
{
    struct scenery *scenery = *state;
    tether_test_signal(scenery->procs->world, 2, SIGSTOP);
    bool others_are_shown = false;
    while (!others_are_shown) { /* on a busy machine the other workers may also take longer than a
                                   second */
        char *output = inspect(scenery, 1, "--timeout=1000", NULL);
        has(output, " does not answer: calling 'tether.dump' on worker 'worker2' timed out");
        others_are_shown = strstr(output, naming(scenery, "OBJECT"));
        free(output);
    }
    tether_test_signal(scenery->procs->world, 2, SIGCONT);
}

/* A dynamic group of one worker, which is killed. */
TETHER_PROC_ROLE(alone)
{
    tether_error err = {0};
    tether_store *store = NULL;
    tether_agent *agent = NULL;
    check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = atoi(self->arg)), &store, &err), &err);
    check(tether_agent_new(TETHER_AGENT_OPTS(.store = store, .name = "mortal", .token = "sesame",
                                             .group = "mortals"),
                           &agent, &err),
          &err);
    check(tether_agent_start(agent, &err), &err);
    tether_test_mark(self->world, HELD);
    tether_test_await_mark(self->world, DONE, 1);
}

static void inspect_shows_state_when_worker_is_dead(void **state)
{
    struct scenery *scenery = *state;
    struct tether_test_procs *procs =
        tether_test_procs_start(alone, .ranks = 1, .arg = strrchr(scenery->store, ':') + 1);
    tether_test_await_mark(procs->world, HELD, 1);
    char *output = inspect(scenery, 0, "--group=mortals", NULL);
    has(output, " connected ");
    free(output);
    tether_test_signal(procs->world, 0, SIGKILL);
    output = inspect(scenery, 1, "--group=mortals", NULL);
    has(output, " dead      does not answer: ");
    has(output, "start it again");
    free(output);
    output = inspect(scenery, 1, "--group=mortals", "--json");
    has(output, "\"state\":\"dead\"");
    free(output);
    output = inspect(scenery, 1, "--group=mortals", "--tree");
    has(output, "mortal  (does not answer: dead)\n");
    free(output);
    tether_test_procs_end(procs);
}

static void inspect_fails_when_token_is_missing(void **state)
{
    unsetenv("TETHER_TOKEN");
    char *output = inspect(*state, 1, NULL, NULL);
    setenv("TETHER_TOKEN", "sesame", 1);
    has(output, "does not answer: ");
    has(output, "has no token");
    free(output);
}

/* The token comes from a file that only this user may read, not from the command line, which `ps`
 * shows. */
static void inspect_reads_token_from_a_private_file(void **state)
{
    struct scenery *scenery = *state;
    char path[] = "/tmp/tether-token-XXXXXX", option[64];
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "sesame\n", 7), 7);
    snprintf(option, sizeof option, "--token-file=%s", path);
    unsetenv("TETHER_TOKEN");
    char *output = inspect(scenery, 0, option, NULL);
    has(output, "worker0, worker2\n");
    free(output);
    assert_int_equal(fchmod(fd, 0644), 0);
    output = inspect(scenery, 2, option, NULL);
    has(output, "other users may read");
    free(output);
    output = inspect(scenery, 2, "--token=sesame", NULL);
    has(output, "give --token-file=FILE, or set TETHER_TOKEN");
    has_not(output, "sesame");
    free(output);
    setenv("TETHER_TOKEN", "sesame", 1);
    close(fd);
    unlink(path);
}

static void inspect_watch_repeats_until_a_signal(void **state)
{
    struct scenery *scenery = *state;
    struct tether_test_child *child = tether_test_child_start((const char *const[]){
        "tools/tether-inspect", scenery->store, PATIENTLY, "--watch=1", "--tree", NULL});
    await_text(child, "◀── worker0, worker2\n", 2);
    tether_test_signal_pid(child->pid, SIGTERM);
    free(await_exit(child, 0));
    tether_test_child_free(child);
}

static void inspect_leaves_out_other_groups(void **state)
{
    char *output = inspect(*state, 1, "--group=other", NULL);
    has(output, "this store has no group 'other': there is 'tether'\n");
    free(output);
    output = inspect(*state, 0, "--group=tether", NULL);
    has(output, "group tether: 3 workers\n");
    free(output);
}

/* Returns every key and value of the store, concatenated; the caller frees it by free(). */
static char *content(struct scenery *scenery)
{
    tether_error err = {0};
    tether_store *store = NULL;
    tether_store_keys keys = {NULL, 0};
    tether_buf all = TETHER_BUF_INIT, value = TETHER_BUF_INIT;
    int port = tether_store_server_port(scenery->server);
    check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port), &store, &err), &err);
    check(tether_store_list_keys(store, TETHER_TEST_LIMIT_MS, &keys, &err), &err);
    for (size_t i = 0; i < keys.count; i++) {
        check(tether_store_get(store, keys.keys[i].data, TETHER_TEST_LIMIT_MS, &value, &err), &err);
        tether_buf_printf(&all, "%s=", keys.keys[i].data);
        tether_buf_append(&all, tether_buf_bytes(&value));
        tether_buf_printf(&all, "\n");
    }
    char *text = malloc(all.len + 1);
    assert_non_null(text);
    for (size_t i = 0; i < all.len; i++) /* values may be binary */
        text[i] = all.data[i] ? all.data[i] : '.';
    text[all.len] = '\0';
    tether_buf_fini(&all);
    tether_buf_fini(&value);
    tether_store_keys_fini(&keys);
    tether_store_release(store);
    return text;
}

static void set(struct scenery *scenery, const char *key, const char *value)
{
    tether_error err = {0};
    tether_store *store = NULL;
    int port = tether_store_server_port(scenery->server);
    check(tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = port), &store, &err), &err);
    check(tether_store_set(store, key, tether_bytes_str(value), TETHER_TEST_LIMIT_MS, &err), &err);
    tether_store_release(store);
}

/* The store also has keys of an application that look like those of a group, and the name of a live
 * worker. */
static void inspection_changes_nothing_in_the_store(void **state)
{
    struct scenery *scenery = *state;
    set(scenery, "app/names", "ann bob");
    set(scenery, "app/run", "not one of ours");
    char *before = content(scenery);
    for (int i = 0; i < 3; i++) {
        char *output = inspect(scenery, 0, NULL, NULL);
        has(output, "group tether: 3 workers\n");
        has_not(output, "group app");
        free(output);
        output = inspect(scenery, 0, "--name=worker1", NULL);
        has(output, "group tether: 3 workers\n");
        free(output);
    }
    char *after = content(scenery);
    assert_string_equal(after, before);
    free(after);
    free(before);
}

/* Opens more observers, one after the other, than a worker can have at once. The group still
 * answers, and the workers' metrics name each other and no observer. */
static void observers_leave_nothing_behind_at_workers(void **state)
{
    struct tether_test_world *world = ((struct scenery *)*state)->procs->world;
    for (int i = 0; i < 20; i++) {
        char *output = inspect(*state, 0, NULL, NULL);
        has(output, "worker0, worker2\n");
        free(output);
    }
    tether_test_mark(world, INSPECTED);
    tether_test_await_mark(world, LOOKED, RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        has(page_of(world)->peers[rank], rank == 1 ? "\"worker0\"" : "\"worker1\"");
        has_not(page_of(world)->peers[rank], "observer");
    }
}

static void inspect_reports_invalid_options(void **state)
{
    (void)state;
    static const struct {
        const char *option;
        int exit_code;
        const char *says;
    } cases[] = {
        {"--store=127.0.0.1:1", 1, "tether-inspect: TETHER_E"},
        {"--store=nowhere", 2, "--store needs HOST:PORT or unix:/PATH, not 'nowhere'"},
        {"--watch=x", 2, "--watch needs a whole number above 0, not 'x'"},
        {"--nonsense", 2, "--nonsense is unknown or has no value; see tether-inspect --help\n"},
        {"what", 2, "unexpected argument 'what'"},
        {"--help", 0, "usage: tether-inspect [options]\n"},
        {"--version", 0, "tether-inspect 0."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tether_test_child *child = tether_test_child_start(
            (const char *const[]){"tools/tether-inspect", cases[i].option, "--timeout=300", NULL});
        char *output = await_exit(child, cases[i].exit_code);
        has(output, cases[i].says);
        free(output);
        tether_test_child_free(child);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inspect_shows_objects_and_their_holders),
        cmocka_unit_test(inspect_prints_json_and_dot),
        cmocka_unit_test(inspect_names_worker_when_it_does_not_answer),
        cmocka_unit_test(inspect_fails_when_token_is_missing),
        cmocka_unit_test(inspect_reads_token_from_a_private_file),
        cmocka_unit_test(inspect_watch_repeats_until_a_signal),
        cmocka_unit_test(inspect_leaves_out_other_groups),
        cmocka_unit_test(inspection_changes_nothing_in_the_store),
        cmocka_unit_test(observers_leave_nothing_behind_at_workers),
        cmocka_unit_test(inspect_reports_invalid_options),
        cmocka_unit_test(inspect_shows_state_when_worker_is_dead), /* last, because it leaves a dead
                                                                      worker in the store */
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
