/* Two processes over gRPC. */
#include "tests/rpc/transport/proc_suite.h"

int main(int argc, char **argv)
{
    return transport_proc_suite(&node_grpc, argc, argv);
}
