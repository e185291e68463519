/* The suite of the transports over unix sockets, with pollers that spin. */
#include "tests/rpc/transport/suite.h"

int main(void)
{
    return transport_suite(&node_unix_spin);
}
