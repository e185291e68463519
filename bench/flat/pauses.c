/* The pauses that flat_bench measures: how long one operation waits while many references are
 * fenced, lost or dumped, while their table grows, or while many calls end. The agent that operates
 * is the one that has the work with them. */
#include <stdlib.h>

#include "bench/flat/calls.h"
#include "bench/flat/shared.h"
#include "bench/lib/crew.h"

struct flat_pause flat_pause_of_fence(size_t n)
{
    char name[16];
    flat_next_name(name);
    tether_agent *holder = flat_join(name, &flat_keepers[2], NULL, 0);
    flat_lend(flat_owner, name, NULL, n);
    flat_watch_begin(flat_owner, "client");
    tether_agent_release(holder);
    flat_wait_until_empty(flat_owner);
    struct flat_pause pause = flat_watch_end();
    flat_release_values(&flat_keepers[2]);
    free(flat_keepers[2].values);
    return pause;
}

struct flat_pause flat_pause_of_lost_owner(size_t n)
{
    char name[16];
    flat_next_name(name);
    tether_agent *lost = flat_join(name, &flat_keepers[2], NULL, 0);
    flat_lend(lost, "client", NULL, n);
    flat_watch_begin(flat_client, "owner");
    tether_agent_release(lost);
    flat_wait_until_lost();
    struct flat_pause pause = flat_watch_end();
    flat_call(flat_owner, "client", "drop", NULL);
    free(flat_keepers[2].values);
    return pause;
}

struct flat_pause flat_pause_of_dump(size_t n)
{
    tether_buf text = TETHER_BUF_INIT;
    tether_error err = {0};
    flat_lend(flat_owner, "client", NULL, n);
    flat_watch_begin(flat_owner, "client");
    bench_check(tether_rref_dump(flat_owner, true, &text), &err);
    struct flat_pause pause = flat_watch_end();
    tether_buf_fini(&text);
    flat_call(flat_owner, "client", "drop", NULL);
    flat_wait_until_empty(flat_owner);
    return pause;
}

struct flat_pause flat_pause_of_creations(size_t n)
{
    tether_rref **rrefs = calloc(n, sizeof(tether_rref *));
    flat_watch_begin(flat_owner, "client");
    for (size_t i = 0; i < n; i++) {
        rrefs[i] = flat_own_object(flat_owner);
        tether_rref_weak_release(tether_rref_weak_new(rrefs[i]));
    }
    struct flat_pause pause = flat_watch_end();
    for (size_t i = 0; i < n; i++)
        tether_rref_release(rrefs[i]);
    free(rrefs);
    return pause;
}

struct flat_pause flat_pause_of_timeout(size_t n)
{
    tether_future **futures = flat_calls_begin(flat_client, "owner", n, 3000);
    flat_watch_begin(flat_client, "owner");
    flat_calls_end(futures, n);
    return flat_watch_end();
}

struct flat_pause flat_pause_of_lost_calls(size_t n)
{
    char name[16];
    flat_next_name(name);
    tether_agent *lost = flat_join(name, &flat_keepers[2], NULL, 0);
    tether_future **futures = flat_calls_begin(flat_client, name, n, FLAT_TIMEOUT_MS);
    flat_watch_begin(flat_client, "owner");
    tether_agent_release(lost);
    flat_calls_end(futures, n);
    struct flat_pause pause = flat_watch_end();
    free(flat_keepers[2].values);
    return pause;
}
