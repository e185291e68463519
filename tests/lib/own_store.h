/* A store whose operations a test runs itself: it refuses, counts or delays them, and passes the
 * others to another store with tether__store_run(). */
#ifndef TETHER_TESTS_LIB_OWN_STORE_H
#define TETHER_TESTS_LIB_OWN_STORE_H

#include "rendezvous/store/op.h"

/* Runs `op`; sets `op->cause` when it fails. Any thread. */
typedef tether_status tether_test_store_fn(void *userdata, struct tether__store_op *op);

/* Makes the store. It has the operations that every store has, and those in `extra`
 * (TETHER__STORE_BIT); the library emulates the others with them. */
tether_status tether_test_store_new(tether_test_store_fn *fn,
                                    void *userdata,
                                    uint32_t extra,
                                    tether_store **ret_store);

#endif
