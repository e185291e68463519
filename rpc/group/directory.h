/* The directory: the workers of the group and their addresses, kept in the store.
 *
 * Keys, under "<group>/": `run` is a random number that the first worker sets once. It
 * distinguishes the content of this store from that of any other store. `starts` is incremented at
 * every start of any worker; its new value is the incarnation of that start. `worker/<name>` is the
 * record of a worker, empty once the worker has left. `rank/<n>` is the name of the worker with
 * that rank in a static group, empty once the worker has left. `names` is the list of the names of
 * all workers, each ended by a NUL. A worker that joins appends its name, and removes it when it
 * leaves. The name of a killed worker is removed by another worker that drops it from its table of
 * peers (remove_dead()).
 *
 * Joining takes no lock, so a worker that dies while it joins delays no other. The incarnation
 * decides between two starts of one name: a record is replaced only by that of a later start. It is
 * emptied by its own start, or by remove_dead().
 *
 * While the agent runs, a pool of threads makes its look-ups, because the store may block and the
 * agent's other threads must not.
 *
 * A store that was restarted empty has another run, or none. Look-ups then fail with an error, not
 * with "not found", until a worker that knows the run has put it back (restore()).
 */
#ifndef TETHER_RPC_GROUP_DIRECTORY_H
#define TETHER_RPC_GROUP_DIRECTORY_H

#include "base/threads/pool.h"
#include "rendezvous/store.h"

/* The lowest id of a worker without a rank; all ranks are below it. It is a constant because such a
 * worker may join when the number of ranks is not known yet. */
#define TETHER__FIRST_DYNAMIC_ID 1000000

/* The number of look-up threads. Look-ups that hang delay others only if this many hang. */
#define TETHER__MAX_LOOKUP_THREADS 8

#define TETHER__RUN_SIZE 33 /* 32 hexadecimal digits and a NUL */

struct tether__worker_record {
    char name[128];
    uint32_t id;
    uint64_t incarnation;   /* number of this start, unique in the run */
    char address[256];      /* address for workers on any host */
    char unix_address[256]; /* address of the unix socket, for workers on the same host; "": none */
    /* equal for two workers that run on the same boot of one host; "": not known */
    char host[64];
    bool address_is_own; /* the worker itself listens at `address`, not a proxy */
    uint32_t world_size; /* world_size that this worker was started with; 0: none */
};

struct tether__directory {
    /* immutable after init() */
    tether_store *store;         /* the store, with the group's name as a prefix of all keys */
    char host[64];               /* name of this host, see struct tether__worker_record */
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

/* The functions below block on the store, at most `timeout_ms`, unless their comment says
 * otherwise. */

/* Reads which run the store belongs to, or begins a run if there is none. */
tether_status tether__directory_enter_run(struct tether__directory *directory,
                                          int timeout_ms,
                                          tether_error *reterr);

/* Reads the run for an observer, which writes nothing: TETHER_ENOTFOUND if there is none. */
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

/* Returns the name of the store, for messages. Does not block. */
const char *tether__directory_store_name(const struct tether__directory *directory);

/* Fills the error for a store that belongs to another run. Does not block. */
tether_status tether__directory_other_run(const struct tether__directory *directory,
                                          tether_error *reterr);

/* Puts the run back into a store that has lost it. The next starts get numbers above `start`, which
 * must be at least as high as every number that was drawn before. TETHER_EUNAVAILABLE: another run
 * has begun there meanwhile. */
tether_status tether__directory_restore(struct tether__directory *directory,
                                        uint64_t start,
                                        int timeout_ms,
                                        tether_error *reterr);

/* Returns TETHER_OK if the record of another start of the same name may be replaced, else the
 * reason why not. May block for long, for example to probe that worker. */
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

/* Removes the record that publish() has entered, unless a later start has replaced it. `rank` -1:
 * does not remove the name of the rank. */
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

/* Reads the name of the worker with this rank; waits until one has joined. "": it has left again.
 */
tether_status tether__directory_name_of_rank(struct tether__directory *directory,
                                             int rank,
                                             int timeout_ms,
                                             char ret_name[128],
                                             tether_error *reterr);

/* Fills the error of two ranks with the same name. Does not block. */
tether_status tether__directory_namesakes(uint32_t rank,
                                          uint32_t other_rank,
                                          const char *name,
                                          tether_error *reterr);

/* Reads the records of all workers of the group. Free `*ret_records` with tether__free(). */
tether_status tether__directory_list(struct tether__directory *directory,
                                     int timeout_ms,
                                     struct tether__worker_record **ret_records,
                                     size_t *ret_n,
                                     tether_error *reterr);

#endif
