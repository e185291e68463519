/* Requests that wait for an object, and the watermarks that tell whether it may still come. */
#ifndef TETHER_RREF_WAITING_H
#define TETHER_RREF_WAITING_H

#include "base/heap.h"
#include "base/list.h"
#include "base/threads/work_list.h"
#include "rpc/handshake/pairing.h"
#include "rref/session.h"

struct tether__resume;

/* A request about an object that is not there yet, or not made yet. It is in several lists, so that
 * each event that answers it finds it without a search. */
struct tether__waiting {
    struct tether__list node;                 /* of its object, or of decided requests */
    struct tether__list by_asker, by_creator; /* of a tether__ref_peer */
    struct tether__heap_node by_deadline;     /* in refs->deadlines, unless it has none */
    struct tether__waiting_fork {
        tether_rref_id id;
        struct tether__peer *from;
    } fork; /* of a fork-request: the key of refs->waiting_forks */
    bool in_waiting_forks;
    enum {
        TETHER__WAITING_FORK,   /* a fork-request */
        TETHER__WAITING_FETCH,  /* a fetch */
        TETHER__WAITING_TARGET, /* a method call */
        TETHER__WAITING_HERE,   /* to_here() on the owner itself */
    } what;
    struct tether__ref_session from; /* retained */
    uint64_t request;                /* to be answered: of a fork, a fetch */
    tether_rref_id object;
    struct tether__awaited *awaited;
    struct tether__peer *creator; /* of the object, when it is not there yet; NULL: not known */
    uint64_t made_in;             /* with a creator: the session that the object is to come in */
    uint32_t n_not_there;         /* how often the directory has not had the creator since */
    uint64_t look; /* with a creator: the last of its looks that came to this; 0: none */
    int64_t since, deadline;
    struct tether__resume *resume; /* of a target */
    tether_future *future;         /* of to_here() */
    tether_rref *held;             /* one count of the object, if it is there */
    /* the answer, once it is decided and the request is out of the lists: */
    struct tether__work work;
    tether_status status;
    bool is_late;    /* the object was not made by `deadline`; `why` says what it waited for */
    const char *why; /* NULL: as `held` is broken with */
};

/* An object that requests wait for. */
struct tether__awaited {
    tether_rref_id id;                   /* the key */
    struct tether__list forks;           /* answered when the object is there */
    struct tether__list uses;            /* answered when it has been made */
    struct tether__watermark *mark;      /* whose heap it is in; NULL: the object has come */
    struct tether__heap_node by_counter; /* of `mark` */
    struct tether__list
        answering; /* in refs->answering while some of its requests have no answer yet */
};

/* How far the creations of one start of a creator have come in. */
struct tether__watermark {
    uint64_t key;                  /* the creator's incarnation */
    uint64_t counter;              /* 0: none has come, but some object is awaited */
    struct tether__ref_peer *of;   /* whose latest creation has raised it; NULL: none */
    struct tether__heap awaited;   /* of objects that have not come, by their counters */
    struct tether__list passed;    /* in refs->passed while some of them are behind `counter` */
    struct tether__list retired;   /* in refs->retired when the start has ended, or is forgotten */
    char by[TETHER__MAX_NAME + 1]; /* the worker whose creations raised it */
};

/* Watermarks of starts that have ended. When there are more, the oldest goes: see
 * docs/rref-protocol.md. */
#define TETHER__MAX_RETIRED_MARKS 1024

/* Whether an object that is not in the table may still come, or has been and gone. */
bool tether__may_come_locked(struct tether__refs *refs, tether_rref_id id);
/* Requests for objects that the watermark has passed are answered by
 * tether__waiting_answer_passed(). */
tether_status tether__watermark_raise_locked(struct tether__refs *refs,
                                             struct tether__peer *creator,
                                             tether_rref_id id);
/* The peer comes with a later start, or is dropped: no creation of this start comes any more. */
void tether__watermark_retire_locked(struct tether__refs *refs, struct tether__watermark *mark);
/* The watermark of an id's creator, made if there is none. NULL: no memory. */
struct tether__watermark *tether__watermark_locked(struct tether__refs *refs, tether_rref_id id);
/* Frees a watermark that says nothing and that no object waits in. */
void tether__watermark_forget_locked(struct tether__refs *refs, struct tether__watermark *mark);

#define TETHER__WAITING_SLICE 64 /* the default of refs->waiting_slice */

/* Whether a request of the peer's may wait: a peer has so many calls at most under way, so an
 * honest one never runs into this. */
bool tether__may_wait_locked(struct tether__refs *refs, struct tether__peer *peer);
/* Has a request wait. `there` (NULL: not there yet) is kept until it is answered. False: no memory.
 */
bool tether__waiting_add_locked(struct tether__refs *refs,
                                const struct tether__waiting *request,
                                tether_rref *there);
/* Whether the object will not come, since its creator was restarted, or the session that it was to
 * come in has ended, before we met the creator again. (What ends while we know it is a fence's.) */
bool tether__waiting_in_vain(const struct tether__waiting *waiting);
/* Says that an object of `owner` was not made in time, and what it waits for (waits_for()). */
tether_status tether__object_is_late(tether_error *reterr,
                                     const char *owner,
                                     int64_t waited_ns,
                                     const char *waits_for);
/* Says in words why an object is not made yet. NULL: it is not in the table. */
const char *tether__object_waits_for_locked(const tether_rref *rref);
/* Answers requests that wait for this object, now that it is there (or made, or gone): a slice of
 * them at once, the rest from the timer. */
void tether__waiting_answer(struct tether__refs *refs, tether_rref_id object);
/* Answers requests for objects that are gone, as watermarks show: a slice of them at once, the rest
 * from the timer. */
void tether__waiting_answer_passed(struct tether__refs *refs);
/* Has the timer go on with what a slice has left. False: the agent stops, which waits for no timer,
 * so the caller goes on. */
bool tether__waiting_leave_to_timer(struct tether__refs *refs);
/* Drops the fork-request: its sender has released the reference, so no fork may be added. */
void tether__waiting_drop_fork_locked(struct tether__refs *refs,
                                      tether_rref_id fork,
                                      struct tether__peer *peer);
/* Takes a request out of all lists but the one that `node` is in then: for the answer. */
void tether__waiting_decide_locked(struct tether__refs *refs,
                                   struct tether__waiting *waiting,
                                   struct tether__list *decided,
                                   tether_status status,
                                   const char *why);
void tether__waiting_answer_decided(struct tether__list *decided);
/* The session has ended; `not_there`: because the directory does not have the peer. Looks again at
 * requests for objects that the peer is to make: at a slice of them at once, at the rest from the
 * timer. */
void tether__waiting_creator_lost(struct tether__refs *refs,
                                  struct tether__peer *peer,
                                  bool not_there);

/* Goes on with what losses of creators have left. When to go on. */
int64_t tether__waiting_go_on_with_losses(struct tether__refs *refs, int64_t now);
/* Looks at a slice of the requests whose creators were met anew. When to go on. */
int64_t tether__waiting_look_at_creators(struct tether__refs *refs, int64_t now);

#endif
