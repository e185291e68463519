/* Hello, remote reference: worker 0 has worker 1 make a greeting and keep it, holds a reference to
 * it, fetches a copy, and lets go of it.
 *
 *     tether-run --nproc-per-node=2 -- hello_rref
 *
 * What to look at: tether_remote() comes back at once and never fails; whatever goes wrong (there
 * is no worker1, greet fails, worker1 dies) is told by to_here().
 */
#include <stdio.h>
#include <unistd.h>

#include "rref/rref.h"

static tether_status greet(void *ud, const tether_value *who, tether_value **ret, tether_error *err)
{
    (void)ud;
    return tether_value_printf(ret, err, "hello, %s, from process %d", tether_value_str(who),
                               (int)getpid());
}

int main(void)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    tether_rref *greeting = NULL;
    tether_value *who = NULL, *text = NULL;

    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://"), &agent, &err) ||
        tether_agent_register(agent, "greet", greet, NULL, &err) ||
        tether_agent_start(agent, &err) || tether_value_printf(&who, &err, "world"))
        goto out;

    if (tether_agent_rank(agent) == 0) {
        greeting = tether_remote(agent, "worker1", "greet", who, TETHER_DEFAULT_MS);
        if (tether_rref_to_here(greeting, TETHER_DEFAULT_MS, &text, &err) == TETHER_OK)
            puts(tether_value_str(text));
    }
out:
    tether_value_release(text);
    tether_value_release(who);
    tether_rref_release(greeting);
    if (agent && !err.code)
        tether_agent_shutdown(agent, true, &err);
    tether_agent_release(agent);
    if (err.code)
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    return err.code != TETHER_OK;
}
