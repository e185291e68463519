/* Connections whose clients have not authenticated; see transport/grpc/unproved.c. */
#ifndef TETHER_RPC_TRANSPORT_GRPC_UNPROVED_H
#define TETHER_RPC_TRANSPORT_GRPC_UNPROVED_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

#define TETHER__GRPC_MAX_UNPROVED 128
#define TETHER__GRPC_MAX_UNPROVED_CALLS 128 /* at once on one; honest clients have fewer */
#define TETHER__GRPC_MAX_ENDING 64

struct tether__grpc_unproved_entry {
    uint64_t id;
    int fd;
    int grpcs_fd;       /* a duplicate; only ever looked at: it may name another file by now */
    ino_t inode;        /* of the socket: tells whether it does */
    char peer[64];      /* "ip port"; empty for a unix path */
    unsigned n_calls;   /* that have not ended */
    uint64_t looked_at; /* bytes that were received for calls that the worker has looked at */
    bool is_admitted;   /* a call came on it that the worker, which asks for no proof, serves */
};

/* A connection that has ended, and that gRPC has yet to close. */
struct tether__grpc_half_closed {
    int grpcs_fd;
    ino_t inode;
    int64_t until;    /* waits no longer for gRPC */
    uint64_t backlog; /* bytes that gRPC had read of it, see unproved.c */
};

struct tether__grpc_unproved {
    /* under mu; the one that was entered or used the longest ago comes first */
    struct tether__grpc_unproved_entry entries[TETHER__GRPC_MAX_UNPROVED];
    size_t n;
    uint64_t last_id;
    struct tether__grpc_half_closed ending[TETHER__GRPC_MAX_ENDING];
    size_t n_ending;
    pthread_mutex_t mu;
    int events;          /* an epoll descriptor: says when bytes came, or an end; -1: none */
    bool limits_backlog; /* immutable after listen() */
    uint64_t
        polls_before; /* at the last look: of the server's side; then the CPU time of its poller */
    int64_t cpu_before, looked_before;
};

void tether__grpc_unproved_init(struct tether__grpc_unproved *unproved);
/* To be called before connections enter; fini() undoes it. `limits_backlog`: other bytes than those
 * of a handshake of TLS may come from clients without a proof. */
tether_status tether__grpc_unproved_listen(struct tether__grpc_unproved *unproved,
                                           bool limits_backlog,
                                           tether_error *reterr);
void tether__grpc_unproved_fini(struct tether__grpc_unproved *unproved);
/* Returns the descriptor that gRPC shall have; -1: there is none left, and the caller keeps `fd`.
 */
int tether__grpc_unproved_enter(struct tether__grpc_unproved *unproved, int fd);
/* A call has come: returns the id of its connection; 0: it is not here. A connection with too many
 * calls at once is shut down. Any thread, like those below; id 0 is fine for them. */
uint64_t tether__grpc_unproved_call_begins(struct tether__grpc_unproved *unproved, grpc_call *call);
/* `was_answered`: the client has had a status, which waited for it to read. */
void tether__grpc_unproved_call_ends(struct tether__grpc_unproved *unproved,
                                     uint64_t id,
                                     bool was_answered);
/* The client was served without proof, as all clients are here: others make room first. */
void tether__grpc_unproved_used(struct tether__grpc_unproved *unproved, uint64_t id);
/* The client has authenticated. */
void tether__grpc_unproved_remove(struct tether__grpc_unproved *unproved, uint64_t id);
/* Whether gRPC has closed enough of those that have ended, so that another may come. */
bool tether__grpc_unproved_has_room(struct tether__grpc_unproved *unproved);
/* Takes out those that have ended, and shuts down those that send too much. To be called when
 * `events` is ready. Returns whether to call it again in a moment, also if `events` is not. */
bool tether__grpc_unproved_look(struct tether__grpc_unproved *unproved);

#endif
