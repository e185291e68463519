/* The function that most tests of calls call: it gives back its argument. */
#ifndef TETHER_TESTS_RPC_ECHO_H
#define TETHER_TESTS_RPC_ECHO_H

#include "rpc/agent.h"

static inline tether_status tether_test_echo(void *userdata,
                                             const tether_value *arg,
                                             tether_value **ret_value,
                                             tether_error *reterr)
{
    (void)userdata, (void)reterr;
    *ret_value = tether_value_retain((tether_value *)arg);
    return TETHER_OK;
}

#endif
