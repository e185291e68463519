#include "tests/rref/rref_suite.h"

int main(void)
{
    return tether_test_rref_suite(TETHER_TEST_GRPC);
}
