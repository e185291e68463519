/* See the header. */
#include "tests/rpc/lib/named.h"

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

static tether_status name(void *userdata,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr)
{
    (void)arg;
    return tether_value_printf(ret_value, reterr, "%s", tether_agent_name(userdata));
}

tether_agent *named_start(const struct tether_agent_opts *opts)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_agent_new(opts, &agent, &err) != TETHER_OK ||
        tether_agent_register_inline(agent, "name", name, agent, &err) != TETHER_OK ||
        tether_agent_start(agent, &err) != TETHER_OK)
        fail_msg("%s", err.message);
    return agent;
}

void named_call(tether_agent *from, const char *to)
{
    tether_error err = {0};
    tether_value *value = NULL;
    if (tether_rpc_sync(from, to, "name", NULL, TETHER_TEST_LIMIT_MS, &value, &err) != TETHER_OK)
        fail_msg("%s calls %s: %s", tether_agent_name(from), to, err.message);
    assert_string_equal(tether_value_str(value), to);
    tether_value_release(value);
}
