/* Helpers for the ranks of a multi-process test. See crew.h. */
#include "tests/rpc/lib/crew.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/store_tcp.h"
#include "tests/lib/cmocka.h"

_Static_assert(sizeof(struct crew_page) <= sizeof((struct tether_test_world *)0)->page, "too big");

struct crew_page *crew_page(struct tether_test_world *world)
{
    return (struct crew_page *)(void *)world->page;
}

int64_t crew_count(struct tether_test_world *world, int counter)
{
    return atomic_load(&crew_page(world)->count[counter]);
}

void crew_ok(tether_status st, const tether_error *err)
{
    if (st != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(st), err->message);
}

void crew_fails(tether_status st,
                const tether_error *err,
                tether_status expected,
                const char *words)
{
    if (st != expected || (st != TETHER_OK && !strstr(err->message, words)))
        fail_msg("not %s '%s' but %s: %s", tether_status_name(expected), words,
                 tether_status_name(st), err->message);
}

/* ---- The store ---- */

tether_store_server *crew_store_start(char ret_port[16])
{
    tether_store_server *server = NULL;
    tether_error err = {0};
    crew_ok(tether_store_server_new(TETHER_STORE_SERVER_OPTS(.port = 0), &server, &err), &err);
    snprintf(ret_port, 16, "%d", tether_store_server_port(server));
    return server;
}

tether_store *crew_store(const char *port)
{
    tether_store *store = NULL;
    tether_error err = {0};
    crew_ok(tether_store_tcp_new(
                TETHER_STORE_TCP_OPTS(.port = atoi(port), .timeout_ms = TETHER_TEST_LIMIT_MS),
                &store, &err),
            &err);
    return store;
}

/* ---- The agent ---- */

static tether_status name(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    return tether_value_printf(ret_value, reterr, "%s", tether_agent_name(userdata));
}

static tether_status count(void *userdata,
                           const tether_value *arg,
                           tether_value **ret_value,
                           tether_error *reterr)
{
    (void)ret_value, (void)reterr;
    struct crew_page *page = userdata;
    atomic_fetch_add(&page->count[atoi(tether_value_str(arg)) % CREW_COUNTERS], 1);
    return TETHER_OK;
}

tether_agent *crew_agent(struct tether_test_rank *self, const struct tether_agent_opts *opts)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    struct tether_agent_opts own = *opts;
    if (!own.threads)
        own.threads = 4;
    own.no_unix_socket |= getenv("TETHER_TEST_NETWORK") != NULL;
    crew_ok(tether_agent_new(&own, &agent, &err), &err);
    crew_ok(tether_agent_register_inline(agent, "name", name, agent, &err), &err);
    crew_ok(tether_agent_register_inline(agent, "count", count, crew_page(self->world), &err),
            &err);
    return agent;
}

void crew_start(tether_agent *agent)
{
    tether_error err = {0};
    crew_ok(tether_agent_start(agent, &err), &err);
}

void crew_stop(tether_agent *agent)
{
    tether_error err = {0};
    crew_ok(tether_agent_shutdown(agent, true, &err), &err);
    tether_agent_release(agent);
}

tether_value *crew_text(const char *format, ...)
{
    char text[256];
    tether_value *value = NULL;
    tether_error err = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    crew_ok(tether_value_printf(&value, &err, "%s", text), &err);
    return value;
}

void crew_call(tether_agent *agent,
               const char *to,
               const char *fn,
               const char *arg,
               const char *result)
{
    tether_error err = {0};
    tether_value *value = crew_text("%s", arg ? arg : ""), *got = NULL;
    crew_ok(tether_rpc_sync(agent, to, fn, value, TETHER_TEST_LIMIT_MS, &got, &err), &err);
    if (result)
        assert_string_equal(tether_value_str(got), result);
    tether_value_release(got);
    tether_value_release(value);
}
