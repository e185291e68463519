/* The built-in URL schemes, one file each (env.c, tcp.c ...), and their shared functions. */
#ifndef TETHER_RENDEZVOUS_URL_HANDLERS_H
#define TETHER_RENDEZVOUS_URL_HANDLERS_H

#include <stdbool.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/url/url.h"

/* A scheme that is built in. */
struct tether__url_scheme {
    const char *name;
    /* names of the query parameters that the scheme accepts, NULL-terminated */
    const char *const *params;
    /* `dont_wait`: rank 0 does not wait for the others to connect. */
    tether_status (*meet)(const struct tether__url *url,
                          bool dont_wait,
                          int timeout_ms,
                          struct tether_world *ret_world,
                          tether_error *reterr);
};

extern const struct tether__url_scheme tether__url_env, tether__url_tcp, tether__url_file,
    tether__url_etcd;

/* Reads rank= and world_size= of the query; both are needed, and the rank must be below the size.
 */
tether_status tether__url_node(const struct tether__url *url,
                               int *ret_rank,
                               int *ret_world_size,
                               tether_error *reterr);

/* Returns TETHER_EINVAL unless `rank` is one of 0 .. world_size - 1. */
tether_status tether__check_rank(int rank, int world_size, tether_error *reterr);

/* Reads "1", "true", "yes", "0", "false" or "no"; `what` names it in the error. */
tether_status tether__parse_bool(const char *text,
                                 const char *what,
                                 bool *ret_value,
                                 tether_error *reterr);

/* Reads parameter `key` of the URL as such a switch; leaves `*ret_value` unchanged when the URL
 * has none. */
tether_status tether__url_switch(const struct tether__url *url,
                                 const char *key,
                                 bool *ret_value,
                                 tether_error *reterr);

/* A rendezvous at a TCP store, for tcp:// and env://. */
struct tether__tcp_meeting {
    const char *scheme; /* name of the scheme, for messages */
    const char *host;
    int port;
    int rank, world_size;
    bool hosted_elsewhere;    /* another process runs the server: rank 0 connects like the others */
    bool dont_wait;           /* rank 0 neither waits for the others nor counts them */
    bool insecure;            /* rank 0 may listen beyond loopback */
    const char *prefix;       /* prefix of all keys; NULL or "": none */
    const char *set_insecure; /* advice: how the user of this scheme sets `insecure` */
};

tether_status tether__tcp_meet(const struct tether__tcp_meeting *meeting,
                               int timeout_ms,
                               struct tether_world *ret_world,
                               tether_error *reterr);

#endif
