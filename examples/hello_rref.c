/* Hello, remote reference: worker 0 creates a greeting on worker 1, holds a reference to it,
 * fetches a copy, and releases the reference.
 *
 *     tether-run --nproc-per-node=2 -- hello_rref
 *
 * Look at tether_remote(): it returns at once and never fails. to_here() reports all errors (there
 * is no worker1, greet fails, worker1 dies).
 */
#include <stdio.h>
#include <unistd.h>

#include "rref/rref.h"

static tether_status greet(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg;
    return tether_value_printf(ret, err, "hello, %s, from process %d", tether_caller_name(),
                               getpid());
}

static tether_status hello(tether_agent *agent, tether_error *err)
{
    tether_value *text = NULL;
    tether_rref *greeting = tether_remote(agent, "worker1", "greet", NULL, TETHER_DEFAULT_MS);
    if (tether_rref_to_here(greeting, TETHER_DEFAULT_MS, &text, err) == TETHER_OK)
        puts(tether_value_str(text));
    tether_value_release(text);
    tether_rref_release(greeting);
    return err->code;
}

int main(void)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://"), &agent, &err) ||
        tether_agent_register(agent, "greet", greet, NULL, &err) ||
        tether_agent_start(agent, &err) || (tether_agent_rank(agent) == 0 && hello(agent, &err)) ||
        tether_agent_shutdown(agent, true, &err))
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    tether_agent_release(agent);
    return err.code != TETHER_OK;
}
