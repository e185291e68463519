/* Ranks of a static group, and the place where they meet. */
#ifndef TETHER_TESTS_RPC_GROUP_STATIC_GROUP_H
#define TETHER_TESTS_RPC_GROUP_STATIC_GROUP_H

#include "tests/rpc/lib/crew.h"

enum { N = 4 };
enum mark { STARTED, KILLED, STOPPED };

/* A file:// place that no test has used. */
void group_file_place(char *ret_place, size_t size);

/* Where this rank meets the others: `place` with its numbers, or those in the environment. */
const char *group_url(const struct tether_test_rank *self, char *url, size_t size);

#endif
