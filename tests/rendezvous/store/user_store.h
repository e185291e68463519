/* A store as a user would write it: the needed functions only, on an array under a mutex. Tests may
 * change it before each compare_set. */
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
    void (*before_swap)(struct user_store *user, const char *key);
    int meddled;
};

extern const struct tether_store_ops user_store_ops;

/* Returns a new store; `ret_user` (may be NULL) is LENT. NULL: out of memory. */
tether_store *user_store_new(struct user_store **ret_user);

/* Sets a key, or deletes it (value NULL). The caller holds mu. */
void user_store_put(struct user_store *user, const char *key, const char *value);

#endif
