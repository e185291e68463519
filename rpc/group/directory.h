/* The directory: the workers of the group and their addresses, kept in the store.
 *
 * Keys, under "<group>/": `run` is a random number that the first worker sets once: it tells this
 * store's content from that of any other store; `starts` is counted up at every start of any
 * worker, and the sum is that start's incarnation; `worker/<name>` is the record of a worker, empty
 * once it has left; `rank/<n>` names the worker of a static group's rank, likewise; `names` is the
 * list of the names that have joined (appended, one NUL-terminated name each): a worker that leaves
 * takes its name out again. The name of one that was killed is taken out by a worker that forgets
 * it (remove_dead()).
 *
 * Joining takes no lock, so a joiner that dies on its way delays no other. The incarnation decides:
 * a record is only ever replaced by one of a later start, and emptied by its own.
 *
 * Look-ups that the agent needs while it runs are done by threads of their own (a pool), since the
 * store may block and nothing else of the agent may.
 *
 * A store that comes back empty has another run, or none: its answers are errors, never "not
 * found", until a worker that knows the run has put it back (restore()).
 */
#ifndef TETHER_RPC_GROUP_DIRECTORY_H
#define TETHER_RPC_GROUP_DIRECTORY_H

#include "base/threads/pool.h"
#include "rendezvous/store.h"

/* Of the ids of workers without a rank: a rank is always below it. Such a worker may join before
 * the ranks do, when the number of ranks is not known yet. */
#define TETHER__FIRST_DYNAMIC_ID 1000000

/* A look-up that hangs holds up no other until so many hang. */
#define TETHER__MAX_LOOKUP_THREADS 8

#define TETHER__RUN_SIZE 33 /* 32 hexadecimal digits and a NUL */

struct tether__worker_record {
    char name[128];
    uint32_t id;
    uint64_t incarnation;   /* of this start; no other start of the run has it */
    char address[256];      /* for all workers */
    char unix_address[256]; /* for workers of the same host; "" : none */
    char host[64];          /* equal on two workers: same host, same boot; "" : not known */
    bool address_is_own;    /* the worker itself listens at `address`, not a proxy */
    uint32_t world_size;    /* that this worker was started with; 0: none */
};

struct tether__directory {
    /* immutable after init() */
    tether_store *store;         /* under the group's prefix */
    char host[64];               /* this host */
    struct tether__pool lookups; /* runs tasks that ask the store and may block */
    bool running;
    char run[TETHER__RUN_SIZE]; /* set by enter_run(); "" before */
};

tether_status tether__directory_init(struct tether__directory *directory,
                                     tether_store *store,
                                     const char *group,
                                     tether_error *reterr);
void tether__directory_fini(struct tether__directory *directory);

/* Whether the worker runs on this host, in the same network namespace. */
bool tether__directory_is_here(const struct tether__directory *directory,
                               const struct tether__worker_record *record);

/* All of these block on the store, at most `timeout_ms`. */

/* Learns which run the store belongs to; the first to ask begins one. */
tether_status tether__directory_enter_run(struct tether__directory *directory,
                                          int timeout_ms,
                                          tether_error *reterr);

/* The same for an observer, which never begins a run (TETHER_ENOTFOUND) and writes nothing. */
tether_status tether__directory_find_run(struct tether__directory *directory,
                                         int timeout_ms,
                                         tether_error *reterr);

/* Draws the number of this start: higher than that of every earlier start in the run. */
tether_status tether__directory_count_start(struct tether__directory *directory,
                                            int timeout_ms,
                                            uint64_t *ret_incarnation,
                                            tether_error *reterr);

/* Whether the store still belongs to this run. TETHER_OK; TETHER_ENOTFOUND: it has lost all keys;
 * TETHER_EUNAVAILABLE: it belongs to another run, or does not answer. */
tether_status tether__directory_check_run(struct tether__directory *directory,
                                          int timeout_ms,
                                          tether_error *reterr);

/* The store, for messages. Does not block. */
const char *tether__directory_store_name(const struct tether__directory *directory);

/* The error of a store that belongs to another run. Does not block. */
tether_status tether__directory_other_run(const struct tether__directory *directory,
                                          tether_error *reterr);

/* Puts the run back into a store that has lost it. The numbers of starts go on above `start`, which
 * must be no less than any that was drawn before. TETHER_EUNAVAILABLE: another run has begun there
 * meanwhile. */
tether_status tether__directory_restore(struct tether__directory *directory,
                                        uint64_t start,
                                        int timeout_ms,
                                        tether_error *reterr);

/* Says whether the record of another start of the same name may be replaced. May block, also for
 * longer than the store takes. */
typedef tether_status tether__directory_judge(void *userdata,
                                              const struct tether__worker_record *other,
                                              tether_error *reterr);

/* Enters this worker into the directory. `judge` is asked about each record of its name before that
 * is overwritten, and its error ends the join; NULL: every earlier start may be replaced.
 * TETHER_EFENCED: a later start of the same name has joined; TETHER_EEXIST: a worker of this name
 * has another rank. */
tether_status tether__directory_publish(struct tether__directory *directory,
                                        const struct tether__worker_record *record,
                                        int rank,
                                        tether__directory_judge *judge,
                                        void *userdata,
                                        int timeout_ms,
                                        tether_error *reterr);
tether_status tether__directory_lookup(struct tether__directory *directory,
                                       const char *name,
                                       int timeout_ms,
                                       struct tether__worker_record *ret_record,
                                       tether_error *reterr);

/* Takes out what publish() of the same record has put in, unless a later start has replaced it.
 * `rank` -1: leaves the rank its name. */
tether_status tether__directory_withdraw(struct tether__directory *directory,
                                         const struct tether__worker_record *record,
                                         int rank,
                                         int timeout_ms,
                                         tether_error *reterr);

/* Removes the record and the name of a worker whose start `incarnation` is certainly dead, unless a
 * later start has replaced it. */
tether_status tether__directory_remove_dead(struct tether__directory *directory,
                                            const char *name,
                                            uint64_t incarnation,
                                            int timeout_ms,
                                            tether_error *reterr);

/* The name of the worker with this rank; waits for it to join. "": it has left again. */
tether_status tether__directory_name_of_rank(struct tether__directory *directory,
                                             int rank,
                                             int timeout_ms,
                                             char ret_name[128],
                                             tether_error *reterr);

/* The error of two ranks that have one name. */
tether_status tether__directory_namesakes(uint32_t rank,
                                          uint32_t other_rank,
                                          const char *name,
                                          tether_error *reterr);

/* Every worker that is in the group now; `*ret_records` is freed with tether__free(). */
tether_status tether__directory_list(struct tether__directory *directory,
                                     int timeout_ms,
                                     struct tether__worker_record **ret_records,
                                     size_t *ret_n,
                                     tether_error *reterr);

#endif
