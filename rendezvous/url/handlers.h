/* The built-in URL handlers, one file each (env.c, tcp.c ...), and their shared functions. */
#ifndef TETHER_RENDEZVOUS_URL_HANDLERS_H
#define TETHER_RENDEZVOUS_URL_HANDLERS_H

#include <stdbool.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/url/url.h"

/* The userdata of the built-in handlers. */
struct tether__meet_how {
    bool dont_wait; /* rank 0 does not wait for the others to connect */
};

tether_rendezvous_fn tether__rendezvous_env;
tether_rendezvous_fn tether__rendezvous_tcp;
tether_rendezvous_fn tether__rendezvous_file;
tether_rendezvous_fn tether__rendezvous_etcd;

/* Parses the URL, calls `meet` with it, and frees it. */
typedef tether_status tether__url_meet_fn(const struct tether__url *url,
                                          const struct tether__meet_how *how,
                                          int timeout_ms,
                                          struct tether_world *ret_world,
                                          tether_error *reterr);
tether_status tether__url_meet(const char *text,
                               tether__url_meet_fn *meet,
                               const struct tether__meet_how *how,
                               int timeout_ms,
                               struct tether_world *ret_world,
                               tether_error *reterr);

/* Reads rank= and world_size= of the query; both are needed, and the rank must be below the size.
 */
tether_status tether__url_node(const struct tether__url *url,
                               int *ret_rank,
                               int *ret_world_size,
                               tether_error *reterr);

/* TETHER_EINVAL unless `rank` is one of 0 .. world_size - 1. */
tether_status tether__check_rank(int rank, int world_size, tether_error *reterr);

/* Reads "1", "true", "yes", "0", "false" or "no"; `what` names it in the error. */
tether_status tether__parse_bool(const char *text,
                                 const char *what,
                                 bool *ret_value,
                                 tether_error *reterr);

/* The same for parameter `key`; leaves `*ret_value` alone when the URL has none. */
tether_status tether__url_switch(const struct tether__url *url,
                                 const char *key,
                                 bool *ret_value,
                                 tether_error *reterr);

/* A rendezvous at a TCP store, for tcp:// and env://. */
struct tether__tcp_meeting {
    const char *scheme; /* for messages */
    const char *host;
    int port;
    int rank, world_size;
    bool hosted_elsewhere;    /* another process runs the server: rank 0 connects like the others */
    bool dont_wait;           /* rank 0 does not wait for the others, nor counts them */
    bool insecure;            /* rank 0 may listen beyond loopback */
    const char *prefix;       /* of all keys; NULL or "": none */
    const char *set_insecure; /* advice: how the user of this scheme sets `insecure` */
};

tether_status tether__tcp_meet(const struct tether__tcp_meeting *meeting,
                               int timeout_ms,
                               struct tether_world *ret_world,
                               tether_error *reterr);

#endif
