/* A small call allocates at most twice at either end, once all pools are filled.
 *
 * Two workers, a process each, so that each counts only its own. The caller allocates one block for
 * the call and one for its result. The callee allocates one for the argument, and for a pooled
 * function one for the queued call.
 */
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/rpc/lib/crew.h"
#include "tests/rpc/lib/echo.h"

enum { CALLS = 2000, WINDOW = 32, MAX_A_CALL = 2 };
enum { STARTED, FINISHED };

/* How many allocations its own process has made so far. */
static tether_status allocations(void *userdata,
                                 const tether_value *arg,
                                 tether_value **ret_value,
                                 tether_error *reterr)
{
    (void)userdata, (void)arg;
    return tether_value_printf(ret_value, reterr, "%ld", tether_test_heap_allocations());
}

static long allocations_there(tether_agent *agent)
{
    tether_error err = {0};
    tether_value *value = NULL;
    crew_ok(tether_rpc_sync(agent, "server", "allocations", NULL, -1, &value, &err), &err);
    long n = atol(tether_value_str(value));
    tether_value_release(value);
    return n;
}

static void call_in_turn(tether_agent *agent, const char *fn, const tether_value *arg)
{
    for (int i = 0; i < CALLS; i++) {
        tether_error err = {0};
        tether_value *value = NULL;
        crew_ok(tether_rpc_sync(agent, "server", fn, arg, -1, &value, &err), &err);
        tether_value_release(value);
    }
}

static void call_at_once(tether_agent *agent, const char *fn, const tether_value *arg)
{
    tether_future *calls[WINDOW] = {0};
    for (int i = 0; i < CALLS + WINDOW; i++) {
        tether_future **call = &calls[i % WINDOW];
        tether_error err = {0};
        if (*call)
            crew_ok(tether_future_wait(*call, -1, NULL, &err), &err);
        tether_future_release(*call);
        *call = i < CALLS ? tether_rpc_async(agent, "server", fn, arg, -1) : NULL;
    }
}

/* A few are over the limit by chance: a buffer that grows, a batch that gRPC gives in two slices.
 */
static void check(const char *what, const char *fn, const char *end, long n)
{
    if (n > MAX_A_CALL * CALLS + CALLS / 5)
        fail_msg("%d calls of '%s', %s: %ld allocations at the %s", CALLS, fn, what, n, end);
}

static void measure(tether_agent *agent,
                    const char *what,
                    void (*call)(tether_agent *, const char *, const tether_value *),
                    const char *fn)
{
    tether_value *arg =
        crew_text("%s", "sixty-four bytes or so of an argument that is worth its call");
    call(agent, fn, arg);
    long there = allocations_there(agent), here = tether_test_heap_allocations();
    call(agent, fn, arg);
    here = tether_test_heap_allocations() - here;
    there = allocations_there(agent) - there;
    check(what, fn, "caller", here);
    check(what, fn, "server", there);
    tether_value_release(arg);
}

TETHER_PROC_ROLE(end_of_a_call)
{
    tether_store *store = crew_store(self->arg);
    tether_error err = {0};
    tether_agent *agent = crew_agent(
        self, TETHER_AGENT_OPTS(.store = store, .name = rank == 0 ? "caller" : "server"));
    crew_ok(tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err), &err);
    crew_ok(tether_agent_register(agent, "echo_pooled", tether_test_echo, NULL, &err), &err);
    crew_ok(tether_agent_register_inline(agent, "allocations", allocations, NULL, &err), &err);
    crew_start(agent);
    tether_test_mark(self->world, STARTED);
    tether_test_await_mark(self->world, STARTED, 2);
    if (rank == 0) {
        measure(agent, "in turn", call_in_turn, "echo");
        measure(agent, "in turn", call_in_turn, "echo_pooled");
        measure(agent, "at once", call_at_once, "echo");
        measure(agent, "at once", call_at_once, "echo_pooled");
        tether_test_mark(self->world, FINISHED);
    }
    tether_test_await_mark(self->world, FINISHED, 1);
    tether_agent_release(agent);
    tether_store_release(store);
}

static void small_call_allocates_two_blocks_at_most(void **state)
{
    (void)state;
    char port[16];
    tether_store_server *server = crew_store_start(port);
    tether_test_procs_end(tether_test_procs_start(end_of_a_call, .ranks = 2, .arg = port));
    tether_store_server_release(server);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_call_allocates_two_blocks_at_most),
    };
    return cmocka_run_group_tests_name("allocations", tests, NULL, NULL);
}
