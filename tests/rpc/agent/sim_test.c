#include "tests/rpc/agent/suite.h"

int main(void)
{
    return tether_test_agent_suite(TETHER_TEST_SIM);
}
