/* How connections come in: the sockets that a worker listens on, the thread or poller that accepts,
 * and what it does with clients that do not speak the worker's protocol.
 */
#ifndef TETHER_RPC_TRANSPORT_GRPC_ACCEPT_H
#define TETHER_RPC_TRANSPORT_GRPC_ACCEPT_H

#include "rpc/transport/grpc/grpc.h"
#include "rpc/transport/grpc/socket_file.h"

/* ---- transport/grpc/bind.c ---- */

#define TETHER__GRPC_MAX_LISTENERS 8

struct tether__grpc_listeners {
    int fds[TETHER__GRPC_MAX_LISTENERS];
    size_t n;
    struct tether__socket_file file; /* the socket file, if a unix path is listened on */
};

/* Returns the port; 0 or less when nothing could be bound. */
int tether__grpc_bind_tcp(struct tether__grpc_listeners *listeners,
                          const char *host,
                          const char *port);
tether_status tether__grpc_bind_path(struct tether__grpc_listeners *listeners,
                                     const char *path,
                                     tether_error *reterr);
/* Closes the sockets, and removes the file of a unix path. A second call does nothing. */
void tether__grpc_listeners_close(struct tether__grpc_listeners *listeners);

/* ---- transport/grpc/external.c ---- */

struct tether__grpc_external {
    void *handler; /* gRPC's handler object for accepted connections; NULL: not added */
};

/* Returns whether this version of gRPC is known to accept external connections in the way that
 * external.c uses. */
bool tether__grpc_external_works(void);
extern atomic_bool
    tether__grpc_external_is_off; /* set by tests: behave as with an unknown version of gRPC */

/* Returns the argument for grpc_server_create() that makes gRPC fill in `external` (LENDS until
 * the server is destroyed). */
grpc_arg tether__grpc_external_arg(struct tether__grpc_external *external);
/* Adds the external port with its credentials to the server. False: gRPC does not accept the
 * credentials. */
bool tether__grpc_external_add(struct tether__grpc_external *external,
                               grpc_server *server,
                               grpc_server_credentials *credentials);
/* Hands a connection over, between the start of the server and its shutdown. TAKES `fd`. */
void tether__grpc_external_take(const struct tether__grpc_external *external, int fd);

/* ---- transport/grpc/mismatch.c ---- */

#define TETHER__GRPC_PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

/* The status text of each call on a connection without TLS; the dialler knows it (close.c). */
#define TETHER__GRPC_NEEDS_TLS \
    "this worker has TLS and the connection has not: give both ends a certificate, or neither"

/* The protocol of a client's first bytes. BEGINS: there are too few bytes to tell. */
enum tether__grpc_speech {
    TETHER__GRPC_BEGINS_PLAIN,
    TETHER__GRPC_BEGINS_TLS,
    TETHER__GRPC_SPEAKS_PLAIN,
    TETHER__GRPC_SPEAKS_TLS,
    TETHER__GRPC_SPEAKS_OTHER,
};
enum tether__grpc_speech tether__grpc_speech_of(const char *first, size_t n);

/* How many bytes must have come before a client can be judged. Without TLS it sends the preface,
 * then a SETTINGS frame, whose head has 9 bytes; with TLS a record, whose head has 5. */
#define TETHER__GRPC_FIRST_BYTES (sizeof TETHER__GRPC_PREFACE - 1 + 9) /* the larger of both */
int tether__grpc_bytes_wanted(enum tether__grpc_speech speech);

struct tether__grpc_mismatch {
    bool is_over; /* the whole answer was given */
    size_t skip;  /* how many bytes of the client to skip before its next frame */
    size_t n_head;
    uint8_t head[9];
};

/* begin() and feed() return how many bytes of `out` to send to the client. feed() must get
 * everything that the client has sent, from its first byte on. */
#define TETHER__GRPC_MISMATCH_BYTES 512
size_t tether__grpc_mismatch_begin(struct tether__grpc_mismatch *mismatch,
                                   bool client_has_tls,
                                   uint8_t out[TETHER__GRPC_MISMATCH_BYTES]);
size_t tether__grpc_mismatch_feed(struct tether__grpc_mismatch *mismatch,
                                  const uint8_t *bytes,
                                  size_t n,
                                  uint8_t out[TETHER__GRPC_MISMATCH_BYTES]);

/* Logs that the client of `fd` was refused, unless the limit has been reached. */
struct tether__log_limit;
void tether__grpc_log_mismatch(struct tether__log_limit *limit, int fd, bool has_tls);

/* ---- transport/grpc/accept.c ---- */

/* Makes an acceptor for `listeners`; with `external` (TLS) it hands connections to that. All
 * arguments LEND. The acceptor is made even on error, and the caller frees it. */
struct tether__grpc_acceptor;
tether_status tether__grpc_acceptor_new(struct tether__grpc *transport,
                                        const struct tether__grpc_external *external,
                                        struct tether__grpc_listeners *listeners,
                                        struct tether__grpc_acceptor **ret_acceptor,
                                        tether_error *reterr);

/* Starts a thread that does the acceptor's turns. */
tether_status tether__grpc_acceptor_run(struct tether__grpc_acceptor *acceptor,
                                        tether_error *reterr);

/* For an acceptor without a thread: fd() is readable when there is work, and turn() does one turn.
 * turn() returns when the next turn is due at the latest. One thread only. */
int tether__grpc_acceptor_fd(const struct tether__grpc_acceptor *acceptor);
int64_t tether__grpc_acceptor_turn(struct tether__grpc_acceptor *acceptor);

/* Hands connections to `server` (LENDS) from now on. NULL: the server could not start, so waiting
 * connections are closed. Any thread. */
void tether__grpc_acceptor_open(struct tether__grpc_acceptor *acceptor, grpc_server *server);

/* Stops accepting connections. Call it before the server is shut down, when no other thread does
 * turns. Accepts NULL, as free() does. */
void tether__grpc_acceptor_stop(struct tether__grpc_acceptor *acceptor);
void tether__grpc_acceptor_free(struct tether__grpc_acceptor *acceptor);

#endif
