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
    struct tether__socket_file file; /* of a unix path */
};

/* Returns the port; 0 or less when nothing could be bound. */
int tether__grpc_bind_tcp(struct tether__grpc_listeners *listeners,
                          const char *host,
                          const char *port);
tether_status tether__grpc_bind_path(struct tether__grpc_listeners *listeners,
                                     const char *path,
                                     tether_error *reterr);
/* Closes them, and removes the file of a unix path. Harmless twice. */
void tether__grpc_listeners_close(struct tether__grpc_listeners *listeners);

/* ---- transport/grpc/external.c ---- */

struct tether__grpc_external {
    void *handler; /* gRPC's; NULL: not added */
};

/* Whether this version of gRPC is known to take connections so. */
bool tether__grpc_external_works(void);
extern atomic_bool
    tether__grpc_external_is_off; /* for tests: as with a version that is not known */

/* An argument for grpc_server_create(); LENDS `external` until the server is destroyed. */
grpc_arg tether__grpc_external_arg(struct tether__grpc_external *external);
/* False: gRPC does not accept the credentials. */
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

/* The protocol that the first bytes of a client are of; BEGINS: they may become that. */
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
#define TETHER__GRPC_FIRST_BYTES (sizeof TETHER__GRPC_PREFACE - 1 + 9) /* the most */
int tether__grpc_bytes_wanted(enum tether__grpc_speech speech);

struct tether__grpc_mismatch {
    bool is_over; /* all that there is to say has been said */
    size_t skip;  /* bytes of the client that come before the next frame */
    size_t n_head;
    uint8_t head[9];
};

/* Each returns how many bytes of `out` the client is to be sent. feed() takes all that the client
 * has sent, from its first byte on. */
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

/* Accepts on `listeners`; with `external` (TLS) connections go there. All LEND. The acceptor is
 * made also on error, for free(). */
struct tether__grpc_acceptor;
tether_status tether__grpc_acceptor_new(struct tether__grpc *transport,
                                        const struct tether__grpc_external *external,
                                        struct tether__grpc_listeners *listeners,
                                        struct tether__grpc_acceptor **ret_acceptor,
                                        tether_error *reterr);

/* Has a thread of its own do the turns. */
tether_status tether__grpc_acceptor_run(struct tether__grpc_acceptor *acceptor,
                                        tether_error *reterr);

/* Without such a thread: the descriptor that can be read when there is something to do, and one
 * turn, which does it. turn() returns when the next one is due at the latest. One thread. */
int tether__grpc_acceptor_fd(const struct tether__grpc_acceptor *acceptor);
int64_t tether__grpc_acceptor_turn(struct tether__grpc_acceptor *acceptor);

/* Connections go to `server` (LENDS) from here on. NULL: it could not start; connections that wait
 * for it are closed. Any thread. */
void tether__grpc_acceptor_open(struct tether__grpc_acceptor *acceptor, grpc_server *server);

/* No more connections are accepted; before the server is shut down, and when no other thread does
 * turns. NULL is fine, as it is for free(). */
void tether__grpc_acceptor_stop(struct tether__grpc_acceptor *acceptor);
void tether__grpc_acceptor_free(struct tether__grpc_acceptor *acceptor);

#endif
