/* A crowd: simulated workers that create objects and pass and release references, and the oracle
 * that tracks the holders of each object and reports broken promises of the protocol.
 *
 *   crowd.c    workers and their starts; the references that each holds; ops in flight
 *   serve.c    the functions that workers call on each other
 *   store.c    their store, which may be lost and come back empty
 *   leftover.c workers of an earlier run, at the addresses of these
 *   ops.c      the ops that workers begin, drawn from the seed
 *   chaos.c    the faults, drawn from the seed, and the loop of ops and faults
 *   oracle.c   the properties (S1 to S4, L1, L2, P, R, T) that hold at each event, and at the end
 *   steps.c    those that are searched for after every event
 *
 * An object is a *thing* with a number. Every message about a thing says the number, so a reference
 * that leads to another thing is noticed. A reference that a worker holds sits in a *slot*; one in
 * flight is part of an *op*: a call, a fetch or a creation that has not ended.
 *
 * The happy path of an op: ops.c begins it; the function that it calls, if any, takes references
 * into slots; its future ends it, and the oracle judges how.
 */
#ifndef TETHER_TESTS_SIM_CROWD_H
#define TETHER_TESTS_SIM_CROWD_H

#include "base/list.h"
#include "rref/context.h"
#include "rref/rref.h"
#include "tests/rpc/lib/sim_net.h"

#define MAX_WORKERS 5
#define WEATHERS 13       /* kinds of worlds: see chaos.c */
#define TWO_RUNS_ONE_IN 8 /* worlds with workers of an earlier run */
#define SLICED_ONE_IN 8   /* worlds whose slices of waiting requests are small */
#define MAX_STARTS 32
#define MAX_THINGS 256
#define MAX_THINGS_IN_MESSAGE 3
#define MAX_NEWCOMERS 16 /* that start without finding the run */

#define LEASE_MS 1000
#define TIMEOUT_MS 3000 /* the default of all workers */
#define SHUTDOWN_MS 5000
#define IDLE_NS ((LEASE_MS + 1000) * TETHER__NS_PER_MS) /* L1: a lease and a second */
#define L2_GRACE_NS (100 * TETHER__NS_PER_MS)
#define REST_NS (20 * TETHER__NS_PER_MS) /* P: for what a slice leaves to the timer */

struct crowd;

/* The rules by which the oracle excuses what would else break a promise. Each use is counted, so
 * that `./dev sim` shows which rules matter, and a rule that excuses nothing can go. */
#define EXCUSES(X)                                                                          \
    X(TIME_WAS_UP, "failed: its time was up")                                               \
    X(BROKEN_BEFORE, "failed: its reference was broken before it began")                    \
    X(FUNCTION_FAILED, "failed: the function that makes its object failed")                 \
    X(UNREADABLE, "failed: copies of its thing cannot be deserialised")                     \
    X(PARENT_NOT_MADE, "failed: the object whose method makes its object was not made")     \
    X(CREATION_TIMED_OUT, "failed: the creation of its object timed out")                   \
    X(CREATOR_LOST, "failed: the creator of its object was lost before it was made")        \
    X(WORKER_GONE, "failed: a worker that it concerns died, left or was replaced")          \
    X(SESSION_ENDED, "failed: a session among those that it concerns ended")                \
    X(ENDS_DISAGREED, "failed: the ends of a session disagreed when it began")              \
    X(MESSAGE_LATE, "released what a message carries: its time was up")                     \
    X(MESSAGE_GONE, "released what a message carries: a worker died, left, was replaced")   \
    X(MESSAGE_FENCED, "released what a message carries: a session ended")                   \
    X(MESSAGE_DISAGREED, "released what a message carries: ends disagreed when it began")   \
    X(MESSAGE_REFUSED, "released what a message carries: it is refused for its object")     \
    X(MESSAGE_TOO_LATE, "released what a message carries: it was made after its timeout")   \
    X(OTHER_RUN, "failed: a worker of an earlier run answered in its place")                \
    X(LOST_BROKEN, "owner lost: the creation had failed before")                            \
    X(OTHER_START, "waits for what is gone: on a start that its creator had not met")       \
    X(HOLDER_FENCED, "destroyed what is held: the session with the holder ended")           \
    X(UNKNOWN_FENCED, "does not know a holder: the session with it ended")                  \
    X(GIVEN_FENCED, "was given what is destroyed: the session with its owner ended")        \
    X(KEPT_FOR_FAULT, "kept what is unused: a fault began or ended")                        \
    X(KEPT_FOR_LEAVING, "kept what is unused: a worker that leaves holds it")               \
    X(KEPT_UNAWARE, "kept what is unused: its owner has not met the later start")           \
    X(KEPT_FOR_FAILED, "kept what is unused: its failed creation has not been released")    \
    X(KEPT_STORE_LOST, "kept what is unused: a worker cannot be dialled without the store") \
    X(LATE_PAUSED, "was late: its caller was paused")                                       \
    X(FOUNDED_RUN, "founded another run: no running worker had put theirs back yet")        \
    X(NOT_MET, "ended a session: its ends had not met")

enum excuse {
#define X(name, text) EXCUSE_##name,
    EXCUSES(X)
#undef X
        N_EXCUSES
};

/* One start of a worker. */
struct start {
    struct crowd *crowd;
    int worker;
    char name[8];
    tether_agent *agent;
    bool dead;          /* killed */
    bool leaving, left; /* shuts down, has shut down */
    bool replaced; /* there is a later start of this worker: no other worker relies on this one */
    bool paused;
    int64_t resumed_at;         /* since the last pause */
    int64_t rest_since;         /* its timer has requests left to answer; 0: it has none */
    struct tether__list slots;  /* references that its program holds */
    struct tether__list inside; /* references that its objects hold */
    bool touched;               /* it may have changed since steps.c looked at its references */
    struct tether__map forks;   /* forks that its objects have or had, for S4 */
    struct entry *entries;      /* its objects and their forks, as steps.c last found them */
    size_t n_entries, max_entries;
    unsigned version;             /* counts the changes among them; never 0 */
    uint64_t met_in[MAX_STARTS];  /* the session with each other start, once both ends have met */
    uint64_t seen_in[MAX_STARTS]; /* the same before they have met; 0: none */
};

/* An object, from the moment a worker asks for it. */
struct thing {
    int number;
    int worker;          /* index of the worker that will own it */
    struct start *owner; /* once it is made */
    enum { UNMADE, ALIVE, DESTROYED } state;
    bool fails;                  /* its function does not make it, but returns thing_failure() */
    struct thing *parent;        /* whose method makes it; NULL: a function does */
    struct start *creator;       /* the worker that asked for it; NULL: its owner wrapped it */
    struct start *asked;         /* with a creator: the start that it asked */
    uint64_t session_numbers[2]; /* of their session then, as each of them had it */
    bool start_unknown;          /* the creator had not met any start of its worker */
    int64_t due;                 /* when the creator gives up */
    int64_t made_at;             /* once it is made */
    tether_status broken;        /* the status of its creation at the creator, if that failed */
    tether_rref_id id;           /* once it is known: asked for, or seen at its owner */
    int64_t wanted_at;           /* when a worker last held it or had it in flight */
    int64_t failed_at;           /* when its creator last held the handle of the failed creation */
    int64_t left_at;             /* when a worker that was leaving last held it */
    int64_t unaware_at; /* when a replaced start last held it whose successor its owner never met */
    unsigned excuses;   /* rules that excused that it is kept: each counts once */
};

/* Any status at all: none that user code returns means anything to the library. Without a draw, so
 * that seeds mean the same worlds as before. */
static inline tether_status thing_failure(const struct thing *thing)
{
    return (tether_status)(1 + thing->number % TETHER_EINTERNAL);
}

/* Whether copies of it cannot be deserialised; that fails with thing_failure(), too. */
static inline bool thing_is_unreadable(const struct thing *thing)
{
    return thing->number % 16 == 7;
}

/* The thing itself, at its owner, or a copy of it. */
struct object {
    struct thing *thing;
    bool is_copy;
    struct slot *inside; /* a reference that the thing holds; NULL: none */
};

struct slot {
    struct tether__list node;
    struct start *start;
    tether_rref *rref;
    struct thing *thing;
    int n_lost; /* notices that its owner is lost */
    struct watch *watch;
    unsigned known_in; /* the version of the owner's tables that is known to have it */
    unsigned excuses;  /* rules that excused something about it: each counts once */
    bool was_broken;   /* when L1 was last judged */
};

/* The starts that an op concerns, and the sessions among them when it began. */
struct concern {
    struct start *starts[2 + MAX_THINGS_IN_MESSAGE];
    int n;
    uint64_t session_numbers[2 + MAX_THINGS_IN_MESSAGE][2 + MAX_THINGS_IN_MESSAGE];
    bool fenced; /* some ends did not agree on their session even then */
};

enum op_kind { OP_MAKE, OP_PASS, OP_ASK, OP_FETCH, OP_TOUCH };

struct op {
    struct tether__list node;
    int number;
    enum op_kind kind;
    struct start *by, *to; /* to: the start that it calls; NULL: the owner of things[0] */
    int64_t deadline;
    int n_things;
    struct thing *things[MAX_THINGS_IN_MESSAGE];
    struct concern concern;
    tether_status broken; /* the cause, if the reference was broken when the op began */
    bool in_flight;       /* its references are in flight */
    unsigned excuses;     /* rules that excused what it carries: each counts once */
};

/* The store that a store of the simulation forwards to. */
struct store_view {
    tether_store **inner;
    const bool *is_lost; /* requests fail */
};

struct crowd {
    struct tether_sim *sim;
    tether_store *store;
    tether_store *inner_store; /* that has the keys */
    bool store_is_lost;        /* requests fail */
    struct store_view view;
    tether_store *earlier_store, *earlier_inner_store; /* of the earlier run */
    bool earlier_is_lost;
    struct store_view earlier_view;
    struct leftover *leftovers[MAX_WORKERS];  /* by worker; NULL: none */
    bool two_runs;                            /* there are leftovers */
    size_t waiting_slice;                     /* of all workers: 1 or 2; 0: the default */
    struct leftover *founders[MAX_NEWCOMERS]; /* only the last one may be running */
    int n_founders, n_newcomers;
    uint64_t seed;
    int n_workers;
    struct start *latest[MAX_WORKERS];
    bool has_other_name[MAX_WORKERS]; /* it is "v0", not "w0" */
    struct start *starts[MAX_STARTS];
    int n_starts;
    struct thing things[MAX_THINGS];
    int n_things;
    struct tether__list ops;
    struct tether__list late; /* creations that will be answered later */
    int n_ops;
    struct watch *watches; /* for lost owners */
    struct spell *spells;  /* faults that end by themselves */
    bool bulky;            /* messages of more than a few hundred bytes go in pieces */
    bool faultless;        /* no faults are injected */
    bool renames;          /* workers that were killed may come back under another name */
    bool sessions_last;    /* nothing happens that may end a session */
    bool closing;          /* nothing new is begun, nothing is kept */
    bool over;             /* agents are being released */
    int64_t disturbed_at;  /* a fault began or ended */
    int64_t store_back_at; /* since when the store can be asked again */
    int64_t stuck_at;      /* a reference could not reach its owner, because the store was lost */
    int64_t l1_at, l2_at;  /* before then no thing can be idle for too long, no op late */
    struct {               /* event counts of the run, for the summary */
        int made, destroyed, arrived, refused, used, restarted, store_losses, empty_stores, renamed;
        int refused_starts;
    } seen;
    long excuses[N_EXCUSES];
    char violation[512]; /* "": none */
};

/* ---- crowd.c ---- */
struct crowd *crowd_new(uint64_t seed, bool trace);
void crowd_free(struct crowd *crowd); /* releases what is left */

struct start *crowd_start(struct crowd *crowd, int worker);
/* The next start of a worker that was killed has another name, and the id of the one before. */
void crowd_rename(struct crowd *crowd, int worker);
struct start *crowd_start_of(struct crowd *crowd, const char *caller_name);

/* Whether it keeps its promises. */
static inline bool start_lives(const struct start *start)
{
    return start && !start->dead && !start->leaving && !start->replaced;
}

/* Whether it can be asked to do something. */
static inline bool start_works(const struct start *start)
{
    return start_lives(start) && !start->paused;
}

/* Takes a reference (retained) into a slot. */
struct slot *slot_new(struct start *start, tether_rref *rref, struct thing *thing);
void slot_drop(struct slot *slot);
struct slot *slot_pick(struct start *start); /* NULL: it has none that is of use */
tether_rref_state slot_state(const struct slot *slot);

struct thing *thing_new(struct crowd *crowd, int worker);
void thing_want(struct thing *thing, struct crowd *crowd); /* a worker wants it at this moment */
/* Called when `by` asks for the thing with `op`, and when it has got a reference for it. */
void thing_ask(struct thing *thing, struct start *by, const struct op *op);
void thing_asked(struct thing *thing, const tether_rref *rref);

struct op *op_new(struct start *by, enum op_kind kind, int timeout_ms);
void op_add_thing(struct op *op, struct thing *thing);
struct op *op_find(struct crowd *crowd, int number);
/* Ends with the future, which it TAKES. */
void op_run(struct op *op, tether_future *future);

/* "the seed has it, once in n" */
bool chance(struct crowd *crowd, int one_in);
int between(struct crowd *crowd, int low, int high);

/* The text of a message: the op, and the things whose references ride along. */
tether_value *message_new(struct crowd *crowd, int op, struct thing *const *things, int n);
struct message {
    int op;
    int n;
    struct thing *things[MAX_THINGS_IN_MESSAGE];
};
struct message message_read(struct crowd *crowd, const tether_value *value);

/* ---- store.c ---- */
tether_status crowd_store_new(struct crowd *crowd, tether_error *reterr);
void crowd_store_lose(struct crowd *crowd);
void crowd_store_return(struct crowd *crowd, bool is_empty);
bool crowd_store_is_whole(const struct crowd *crowd); /* it can be asked, and has the run */
/* Has the directory say that a worker named `to` had the id of the worker named `from`. */
void crowd_store_pass_id(struct crowd *crowd, const char *from, const char *to);

/* The store of an earlier run that has counted `n_starts`. */
tether_status crowd_store_new_earlier(struct crowd *crowd, int n_starts, tether_error *reterr);
/* From now on the workers of the earlier run find the store of this run in its place. */
void crowd_store_give_way(struct crowd *crowd);
void crowd_store_free(struct crowd *crowd);

/* ---- leftover.c ---- */
void leftovers_start(struct crowd *crowd);
void leftovers_meet(struct crowd *crowd, struct start *start); /* has the address of one */
void leftovers_act(struct crowd *crowd);
/* A worker starts while the store is lost, which fails, or has no run: then it founds another one
 * and runs until founder_ends(). Returns whether it runs. */
bool newcomer_starts(struct crowd *crowd, int worker);
void founder_ends(struct crowd *crowd); /* and the store is cleared */
bool store_is_founders(const struct crowd *crowd);
void leftovers_release(struct crowd *crowd);
void leftovers_free(struct crowd *crowd);
void judge_runs(struct crowd *crowd); /* T */
/* A function that only workers of the earlier run call on each other. */
tether_status serve_visit(void *start,
                          const tether_value *arg,
                          tether_value **ret_value,
                          tether_error *reterr);

/* ---- serve.c ---- */
extern const tether_type thing_type;
tether_status thing_make(struct start *owner, struct thing *thing, tether_value **ret_value);
void serve(struct start *start);       /* registers the functions */
void answer_late(struct crowd *crowd); /* every creation that still waits */
void late_free(struct crowd *crowd);

/* ---- ops.c ---- */
void op_begin(struct start *by);               /* begins an op of a drawn kind */
struct start *any_worker(struct crowd *crowd); /* the latest start of one */
struct start *other_worker(struct crowd *crowd, const struct start *but);
void pass_on(struct start *from, struct start *to, struct slot *const *slots, int n);

/* ---- chaos.c ---- */
void chaos(struct crowd *crowd);
bool weather_loses_store(const struct crowd *crowd);
void spells_free(struct crowd *crowd);

/* ---- oracle.c ---- */
void blame(struct crowd *crowd, const char *format, ...) TETHER_PRINTF(2, 3);
uint64_t session_number_of(const struct start *a, const struct start *b); /* as a has it; 0: none */
/* A number of the session in which a has met b; 0: none of its streams is up. */
uint64_t session_met(const struct start *a, const struct start *b);
bool knows_start(const struct start *a, const struct start *b); /* a has met some start of b */
bool excuse(struct crowd *crowd, enum excuse rule); /* counts that the rule excused; true */
/* The same, but counts each rule once per `rules`, because it is judged after every event. */
bool excuse_once(struct crowd *crowd, unsigned *rules, enum excuse rule);
void concern_set(struct op *op); /* sets the starts that the op concerns, as of now */
/* Whether the references of the op must arrive. `thing` is one of those that it carries, and is
 * destroyed. */
bool op_carries(struct op *op, const struct thing *thing);
/* Whether it must have ended. If not, `*ret_limit` is when it must. */
bool op_is_late(struct op *op, int64_t now, int64_t *ret_limit);
bool fenced_between(const struct start *a, const struct start *b);
void judge_destruction(struct thing *thing);
void judge_arrival(struct start *start, tether_rref *rref, struct thing *thing);
void judge_end(struct op *op, tether_status status, const tether_error *error);
void judge_all_is_gone(struct crowd *crowd);
void judge_lost_owners(struct crowd *crowd);

/* ---- steps.c ---- */
void judge_step(void *crowd, tether_agent *agent);
void touch_all(struct crowd *crowd); /* any of the workers may have changed */
/* When all things without references must be destroyed, if no worker wants any from now on. */
int64_t idle_limit(const struct crowd *crowd);
void oracle_free(struct start *start);

#endif
