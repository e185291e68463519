/* The suite of the transports over gRPC. */
#include "tests/rpc/transport/suite.h"

int main(void)
{
    return transport_suite(&node_grpc);
}
