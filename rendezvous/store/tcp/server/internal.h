/* Shared by server.c (starts, listens, stops), client.c (connections) and places.c (how many there
 * may be). Only the loop thread uses this, except for immutable fields. */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_SERVER_INTERNAL_H
#define TETHER_RENDEZVOUS_STORE_TCP_SERVER_INTERNAL_H

#include <uv.h>

#include "base/log_limit.h"
#include "base/threads/loop.h"
#include "net/net.h"
#include "rendezvous/store/tcp/server/session.h"
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
    /* a connection of this listener waits for memory, or for the next round of the loop */
    bool owes_accept;
};

struct tether__store_client {
    union tether__store_stream uv;
    struct tether_store_server *server;
    struct tether__list node;
    struct tether__store_session session;
    tether_buf in; /* the first part of an incomplete request */
    size_t need;   /* how long `in` must be before the parser runs again */
    tether_buf writing;
    uv_write_t write;
    /* size of the write queue at the last sweep, and since when it has not shrunk */
    size_t last_queue;
    uint64_t stuck_since_ms;
    struct tether__list unsure_node; /* a node of server->unsure while its session is unsure */
    uint64_t unsure_since_ms;
    /* a node of server->silent until the client has made a request */
    struct tether__list silent_node;
    uint64_t silent_since_ms;
    bool is_paused, is_closing;
    bool is_legacy; /* the client counts in server->n_legacy */
};

struct tether_store_server {
    /* fields that do not change once the server is started */
    struct tether__loop loop;
    int port;
    char *unix_path;
    struct tether__socket_id unix_id; /* identifies the socket file at unix_path */
    uint64_t max_clients;
    int stall_timeout_ms;

    /* fields that only the loop thread uses */
    struct tether__store_hub hub;
    struct tether__store_listener listeners[TETHER__STORE_SERVER_MAX_LISTENERS];
    int n_listeners;
    struct tether__list clients;
    uv_check_t round_end;       /* runs at the end of a round, and sends its replies */
    uv_timer_t sweep;           /* timer that runs while a client may be stuck */
    uv_timer_t settle;          /* timer that runs while a session is unsure */
    struct tether__list unsure; /* clients with unsure sessions, the one that came first is first */
    struct tether__list silent; /* clients that have made no request, oldest first */
    uint64_t n_silent;
    uint64_t n_legacy;  /* number of connected clients that have used L0 or L1 */
    uint64_t n_accepts; /* number of connections accepted in this round of the loop */
    struct tether__log_limit full;
    uint64_t sweep_ms;
    /* counts for tether_store_server_stats(), except those that the hub keeps */
    struct tether_store_server_stats stats;
    char read_buffer[TETHER__STORE_SERVER_READ_SIZE];
};

int tether__store_stream_init(uv_loop_t *loop, union tether__store_stream *stream, bool is_pipe);

/* Accepts the connection that waits at `listener`. False when out of memory: the connection keeps
 * waiting. */
bool tether__store_client_accept(struct tether__store_listener *listener);

/* Closes the connection; a second call does nothing. */
void tether__store_client_drop(struct tether__store_client *client);

/* Sends the replies of the dirty sessions, and drops sessions that have failed. */
void tether__store_server_flush(tether_store_server *server);

/* Executes the requests of sessions that have been unsure for long enough. */
void tether__store_server_settle(tether_store_server *server);

/* Starts the sweep timer, which checks for stuck clients until there are none. */
void tether__store_server_arm_sweep(tether_store_server *server);

/* Returns whether the client may be stuck. Drops it when it has been stuck for too long. */
bool tether__store_client_sweep(struct tether__store_client *client);

/* places.c: returns the limit of clients where none is given: half of the descriptors. */
uint64_t tether__store_places_default(void);

/* Whether another client may be accepted in this round of the loop; counts it. */
bool tether__store_places_may_accept(tether_store_server *server);

/* Gives an accepted client a place, perhaps that of a silent one. False: the caller drops it. */
bool tether__store_places_enter(struct tether__store_client *client);

/* Note that bytes of the client were handled, or that the client is dropped. */
void tether__store_places_heard(struct tether__store_client *client);
void tether__store_places_leave(struct tether__store_client *client);

/* Closes connections that have been silent for too long. Returns whether to look again later. */
bool tether__store_places_sweep(tether_store_server *server);

#endif
