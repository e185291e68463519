/* A store as a user would write it: the needed functions only, on an array under a mutex. Tests
 * may step in before each compare_set. */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_USER_STORE_H
#define TETHER_TESTS_RENDEZVOUS_STORE_USER_STORE_H

#include <pthread.h>

#include "rendezvous/store.h"

struct user_pair {
    char *key;
    tether_buf value;
};

struct user_store {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    /* under mu */
    struct user_pair pairs[256];
    size_t n;
    /* Called under mu, before each compare_set of `key`; may change the pairs. NULL: nothing. */
    void (*meddle)(struct user_store *user, const char *key);
    int meddled;
};

extern const struct tether_store_ops user_store_ops;

/* A new one; `ret_user` (may be NULL) is LENT. NULL: no memory. */
tether_store *user_store_new(struct user_store **ret_user);

/* Under mu: sets, removes (value NULL). */
void user_store_put(struct user_store *user, const char *key, const char *value);

#endif
