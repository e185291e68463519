/* Hello: every worker can greet; worker 0 asks worker 1 to. */
#include <stdio.h>
#include <unistd.h>

#include "rpc/agent.h"

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
    tether_value *who = NULL, *text = NULL;

    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://"), &agent, &err) ||
        tether_agent_register(agent, "greet", greet, NULL, &err) ||
        tether_agent_start(agent, &err) || tether_value_printf(&who, &err, "world"))
        goto out;

    if (tether_agent_rank(agent) == 0 &&
        tether_rpc_sync(agent, "worker1", "greet", who, TETHER_DEFAULT_MS, &text, &err) ==
            TETHER_OK)
        puts(tether_value_str(text));
    if (!err.code)
        tether_agent_shutdown(agent, true, &err);
out:
    tether_value_release(text);
    tether_value_release(who);
    tether_agent_release(agent);
    if (err.code)
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    return err.code != TETHER_OK;
}
