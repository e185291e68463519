/* What the two halves of the store server share: store_server.c (listening, starting, stopping) and
 * store_client.c (what happens on a connection). Loop thread only, but for what is immutable. */
#ifndef TETHER_RENDEZVOUS_STORE_SERVER_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_SERVER_INTERNAL_H

#include <uv.h>

#include "base/loop.h"
#include "rendezvous/net.h"
#include "rendezvous/store_session.h"
#include "rendezvous/store_tcp.h"

#define TETHER__STORE_SERVER_READ_SIZE ((size_t)64 << 10)
#define TETHER__STORE_SERVER_MAX_LISTENERS (TETHER__NET_MAX_LISTENERS + 1)

union tether__store_stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct tether__store_listener {
    union tether__store_stream uv;
    struct tether_store_server *server;
    bool owes_accept; /* a connection waits for the memory to take it */
};

struct tether__store_client {
    union tether__store_stream uv;
    struct tether_store_server *server;
    struct tether__list node;
    struct tether__store_session session;
    tether_buf in; /* the front of a request that is not all here yet */
    size_t need;   /* how long `in` must get before it is worth another look */
    tether_buf writing;
    uv_write_t write;
    size_t last_queue; /* what the last sweep saw unsent, and since when it is no less */
    uint64_t stuck_since_ms;
    struct tether__list unsure_node; /* its session is unsure, */
    uint64_t unsure_since_ms;        /* and since when */
    bool is_paused, is_closing;
};

struct tether_store_server {
    /* immutable once started */
    struct tether__loop loop;
    int port;
    char *unix_path;
    struct tether__socket_id unix_id; /* of the file at unix_path */
    uint64_t max_clients;
    int stall_timeout_ms;

    /* loop thread only */
    struct tether__store_hub hub;
    struct tether__store_listener listeners[TETHER__STORE_SERVER_MAX_LISTENERS];
    int n_listeners;
    struct tether__list clients;
    uv_check_t round_end;       /* when replies leave */
    uv_timer_t sweep;           /* runs while something may be stuck */
    uv_timer_t settle;          /* runs while a session is unsure */
    struct tether__list unsure; /* clients, first come first */
    uint64_t sweep_ms;
    struct tether_store_server_stats stats; /* the figures that are not counted elsewhere */
    char read_buffer[TETHER__STORE_SERVER_READ_SIZE];
};

int tether__store_stream_init(uv_loop_t *loop, union tether__store_stream *stream, bool is_pipe);

/* Takes the connection that waits at `listener`. False when there is no memory for it: it stays. */
bool tether__store_client_accept(struct tether__store_listener *listener);

/* Ends it, for whatever reason; a second call does nothing. */
void tether__store_client_drop(struct tether__store_client *client);

/* Sends what the sessions have gathered, and drops those that are to be dropped. */
void tether__store_server_flush(tether_store_server *server);

/* Carries out requests of sessions that have been unsure of them for long enough. */
void tether__store_server_settle(tether_store_server *server);

/* Has on_sweep() look from time to time whether somebody is stuck, until nobody is. */
void tether__store_server_arm_sweep(tether_store_server *server);

/* Whether the client may be stuck. Drops it when it has been for too long. */
bool tether__store_client_sweep(struct tether__store_client *client);

#endif
