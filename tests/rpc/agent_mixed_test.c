#include "tests/rpc/agent_suite.h"

int main(void)
{
    return tether_test_agent_suite(TETHER_TEST_MIXED);
}
