/* The stores that store_bench compares: the same operations on each, through its own C client.
 *
 * A peer's server is a process of its own. A client belongs to one thread. A failure ends the
 * process with a message.
 */
#ifndef TETHER_BENCH_STORE_PEERS_H
#define TETHER_BENCH_STORE_PEERS_H

#include <stddef.h>
#include <sys/types.h>

#define STORE_PEER_VALUE_SIZE 64

struct store_peer {
    const char *name;

    /* Becomes the server: binds, writes its port to `ready_fd` as an int, and serves until
     * killed. */
    void (*serve)(int ready_fd);

    void *(*dial)(int port);
    void (*hang_up)(void *client);

    void (*set)(void *client, const char *key, const char *value); /* acknowledged */
    void (*get)(void *client, const char *key);
    void (*add)(void *client, const char *key);
    void (*set_many)(void *client, const char *const *keys, size_t n, const char *value);

    /* sleep() waits for a value at `key`, wake() sets it. Each call pair has a new key. */
    void (*wake)(void *client, const char *key, const char *value);
    void (*sleep)(void *client, const char *key, char value[STORE_PEER_VALUE_SIZE]);

    /* Returns when `n` callers have arrived; `name` is new each time. */
    void (*barrier)(void *client, const char *name, int n);
};

extern const struct store_peer store_peer_tether, store_peer_redis;

#endif
