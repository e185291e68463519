/* A hostile member of a group: a program of its own that has the token of the group, speaks the
 * wire protocol over a plain socket, and sends what no worker would. */
#ifndef TETHER_TESTS_RREF_MEMBER_H
#define TETHER_TESTS_RREF_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protos/rpc.pb-c.h"
#include "rendezvous/store.h"
#include "rpc/agent.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/handshake.h"
#include "rpc/handshake/pairing.h"
#include "tests/lib/proc.h"

#define MEMBER_TOKEN "sesame"
#define MEMBER_START 1000                                /* a later one than the group has drawn */
#define MEMBER_SILENT_ID (TETHER__FIRST_DYNAMIC_ID + 99) /* of "mallory": see below */

/* Where the worker is. It fills this for the member, in the page that all ranks share. */
struct member_notice {
    char unix_address[256], run[TETHER__RUN_SIZE];
    char silent_address[256]; /* where the member listens and never answers; "" : nowhere */
    uint64_t incarnation;
    uint64_t last_start; /* the latest that the store has drawn: the friend's, if there is one */
    uint32_t friend_id;
    uint64_t object[3]; /* the id of one of the worker's, if a test has made it */
};

struct member_notice *member_notice(struct tether_test_world *world);
void member_notice_fill(struct member_notice *notice, tether_agent *worker);

struct member {
    int fd;
    uint64_t seq;
    uint64_t dial; /* the number of this stream */
    char name[64];
    struct tether__self self;
    struct tether__handshake handshake;
};

/* Connects to the worker "w" and says hello as the start `start` of `name`. False: the worker has
 * refused or hung up, and `member->fd` is closed. */
bool member_join(struct member *member,
                 const struct member_notice *notice,
                 const char *name,
                 uint64_t start);

/* The same for the stream with the number `dial`. */
bool member_join_again(struct member *member,
                       const struct member_notice *notice,
                       const char *name,
                       uint64_t start,
                       uint64_t dial);

/* The same, and it says that the worker's start is `to_start`. */
bool member_join_to(struct member *member,
                    const struct member_notice *notice,
                    const char *name,
                    uint64_t start,
                    uint64_t dial,
                    uint64_t to_start);

/* Sends bytes as they are, behind their length. */
void member_send_bytes(struct member *member, const void *bytes, size_t len);

/* Gives the frame the next number, and sends it in a batch of its own. */
void member_send(struct member *member, Tether__Frame *frame);

/* Sends frames as they are, in one batch. */
void member_send_batch(struct member *member, Tether__Frame **frames, size_t n);

/* Sends a batch as it is. */
void member_send_whole(struct member *member, const Tether__Batch *batch);

/* Reads a batch; free it with tether__batch__free_unpacked(). NULL: the worker has hung up. */
Tether__Batch *member_read(struct member *member);

/* Acknowledges the frames up to `seq`. */
void member_acknowledge(struct member *member, uint64_t seq);

/* Reads, and acknowledges, until the reply to a request comes. Returns its status, or -1: the
 * worker has hung up. */
int member_await_reply(struct member *member, uint64_t id);

/* Reads until the worker has hung up. */
void member_await_hangup(struct member *member);

/* A call of `function`; `refs` may be NULL. */
void member_call(struct member *member,
                 uint64_t id,
                 const char *function,
                 Tether__Ref **refs,
                 size_t n_refs);

/* Many references with ids of the member's own, from `first` on, to objects of `owner`. */
struct member_refs {
    Tether__Ref *refs, **pointers;
    Tether__RefId *ids;
    size_t n;
};

void member_refs_init(struct member_refs *refs, size_t n, const char *owner, uint64_t first);
void member_refs_fini(struct member_refs *refs);

Tether__RefId member_id(uint64_t counter);

/* ---- The group that the member belongs to ---- */

#define MEMBER_MAX_CALLS 100
#define MEMBER_MAX_BYTES ((size_t)4 << 20)
#define MEMBER_MAX_MESSAGE ((size_t)1 << 20)

/* A worker "w" and another, "friend", that calls it all the time. */
struct member_group {
    tether_store *store;
    tether_agent *worker, *friend;
    pthread_t thread;
    _Atomic bool stop;
    int n_calls;
    char failure[256]; /* of a call of the friend's; "" : none has failed */
    struct tether_test_event released;
};

/* Starts both in this process, and fills the notice. The worker has the functions "echo", "drop"
 * and "big", which run inline (the last one returns 64 KiB), and "hold", which holds the only
 * thread for pooled functions until `released`. The directory has a worker "mallory", too, at the
 * silent address of the notice. */
void member_group_start(struct member_group *group, struct member_notice *notice);

/* Starts one more worker of the group. */
tether_agent *member_group_agent(struct member_group *group, const char *name);

/* Fails the test if a call of the friend's has failed. */
void member_group_end(struct member_group *group);

#endif
