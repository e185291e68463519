/* The suite of the transports over unix sockets. */
#include "tests/rpc/transport/suite.h"

int main(void)
{
    return transport_suite(&node_unix);
}
