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
/* limit of calls at once on one connection; honest clients have fewer */
#define TETHER__GRPC_MAX_UNPROVED_CALLS 128
#define TETHER__GRPC_MAX_ENDING 64

struct tether__grpc_unproved_entry {
    uint64_t id;
    int fd;
    /* number of gRPC's duplicate; only looked at, because it may refer to another file by now */
    int grpcs_fd;
    ino_t inode;        /* inode of the socket: tells whether `grpcs_fd` still refers to it */
    char peer[64];      /* address of the other end as "ip port"; empty for a unix path */
    unsigned n_calls;   /* number of its calls that have not ended */
    uint64_t looked_at; /* how many bytes were received for calls that the worker has seen */
    bool is_admitted;   /* the worker asks for no proof and has served a call of this connection */
};

/* A connection that has ended, and that gRPC has yet to close. */
struct tether__grpc_half_closed {
    int grpcs_fd;
    ino_t inode;
    int64_t until;    /* when to stop waiting for gRPC to close it */
    uint64_t backlog; /* how many unhandled bytes gRPC had read of it, see unproved.c */
};

struct tether__grpc_unproved {
    /* under mu; sorted, the connection that was entered or used the longest ago comes first */
    struct tether__grpc_unproved_entry entries[TETHER__GRPC_MAX_UNPROVED];
    size_t n;
    uint64_t last_id;
    struct tether__grpc_half_closed ending[TETHER__GRPC_MAX_ENDING];
    size_t n_ending;
    pthread_mutex_t mu;
    /* an epoll descriptor that reports bytes and ends of the connections; -1: none */
    int events;
    bool limits_backlog; /* immutable after listen() */
    /* at the last check: `polls` of the server's side, the CPU time of its poller, the time */
    uint64_t polls_before;
    int64_t cpu_before, looked_before;
};

void tether__grpc_unproved_init(struct tether__grpc_unproved *unproved);
/* Call it before connections are entered; fini() undoes it. `limits_backlog`: clients without a
 * proof may send more than the bytes of a TLS handshake, so backlogs are limited. */
tether_status tether__grpc_unproved_listen(struct tether__grpc_unproved *unproved,
                                           bool limits_backlog,
                                           tether_error *reterr);
void tether__grpc_unproved_fini(struct tether__grpc_unproved *unproved);
/* Enters a connection. Returns the descriptor to give to gRPC; -1: no descriptor is left, and the
 * caller keeps `fd`.
 */
int tether__grpc_unproved_enter(struct tether__grpc_unproved *unproved, int fd);
/* Records a new call and returns the id of its connection; 0: it is not entered. Shuts down a
 * connection with too many calls at once. Any thread may call this and the functions below, which
 * accept id 0. */
uint64_t tether__grpc_unproved_call_begins(struct tether__grpc_unproved *unproved, grpc_call *call);
/* Records the end of a call. `was_answered`: the client got a status. */
void tether__grpc_unproved_call_ends(struct tether__grpc_unproved *unproved,
                                     uint64_t id,
                                     bool was_answered);
/* Records that a client was served without proof, which this worker does not ask for. Its
 * connection is then among the last to be shut down for lack of room. */
void tether__grpc_unproved_used(struct tether__grpc_unproved *unproved, uint64_t id);
/* Removes the connection of a client that has authenticated. */
void tether__grpc_unproved_remove(struct tether__grpc_unproved *unproved, uint64_t id);
/* Returns whether gRPC has closed enough of the connections that have ended, so that another one
 * may be accepted. */
bool tether__grpc_unproved_has_room(struct tether__grpc_unproved *unproved);
/* Removes connections that have ended, and shuts down those that send too much. Call it when
 * `events` is ready. Returns whether to call it again soon, even if `events` is not ready. */
bool tether__grpc_unproved_look(struct tether__grpc_unproved *unproved);

#endif
