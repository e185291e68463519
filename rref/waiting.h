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
    /* a node of its object's list `forks` or `uses`, or of a list of decided requests */
    struct tether__list node;
    /* nodes of the lists `asked` of the asking peer, and `awaited` of the creator */
    struct tether__list by_asker, by_creator;
    /* a node of refs->deadlines, unless the request has no deadline */
    struct tether__heap_node by_deadline;
    struct tether__waiting_fork {
        tether_rref_id id;
        struct tether__peer *from;
    } fork; /* of a fork-request: the key in refs->waiting_forks */
    bool in_waiting_forks;
    enum {
        TETHER__WAITING_FORK,   /* a fork-request of another worker */
        TETHER__WAITING_FETCH,  /* a fetch of another worker */
        TETHER__WAITING_TARGET, /* a method call of another worker */
        TETHER__WAITING_HERE,   /* to_here() on the owner itself */
    } what;
    struct tether__ref_session from; /* retained */
    /* of a fork-request or a fetch: the number of the request to reply to */
    uint64_t request;
    tether_rref_id object;
    struct tether__awaited *awaited;
    /* the creator of an object that is not announced yet; NULL: not known */
    struct tether__peer *creator;
    /* if `creator` is set: the session in which the object is to be announced */
    uint64_t made_in;
    /* how often the directory did not have the creator since the request came */
    uint32_t n_not_there;
    uint64_t look; /* `n_looks` of the creator when this request was last checked; 0: not checked */
    int64_t since, deadline;
    struct tether__resume *resume; /* of a method call: continues the call */
    tether_future *future;         /* of to_here(): the future to finish */
    /* holds one count of the object; NULL: the object is not there */
    tether_rref *held;
    /* the answer, once it is decided and the request is out of the lists: */
    struct tether__work work;
    tether_status status;
    bool is_late;    /* the object was not made by `deadline`; `why` says what it waited for */
    const char *why; /* NULL: use the cause with which `held` is broken */
};

/* An object that requests wait for. */
struct tether__awaited {
    tether_rref_id id;         /* the key in refs->awaited */
    struct tether__list forks; /* fork-requests, answered when the object is announced */
    /* fetches and method calls, answered when the object has been made */
    struct tether__list uses;
    /* the watermark whose heap has this object; NULL: the object has come */
    struct tether__watermark *mark;
    struct tether__heap_node by_counter; /* the node in the heap of `mark` */
    struct tether__list
        answering; /* a node of refs->answering while some of its requests have no answer yet */
};

/* How far the creations of one start of a creator have arrived at this worker. */
struct tether__watermark {
    uint64_t key; /* the creator's incarnation */
    /* counter of the latest creation that arrived; 0: none has, but some object is awaited */
    uint64_t counter;
    struct tether__ref_peer *of; /* the peer whose creation raised `counter` last; NULL: none */
    /* awaited objects that have not come, ordered by their counters */
    struct tether__heap awaited;
    /* a node of refs->passed while `counter` has passed some of them */
    struct tether__list passed;
    /* a node of refs->retired when the start has ended, or its worker is forgotten */
    struct tether__list retired;
    char by[TETHER__MAX_NAME + 1]; /* name of the worker whose creations raised `counter` */
};

/* How many watermarks of ended starts are kept. Beyond it the oldest is dropped: see
 * docs/rref-protocol.md. */
#define TETHER__MAX_RETIRED_MARKS 1024

/* Returns whether an object that is not in the table may still come. False: it was there and is
 * gone. */
bool tether__may_come_locked(struct tether__refs *refs, tether_rref_id id);
/* Raises the watermark. tether__waiting_answer_passed() then answers requests for objects that it
 * has passed. */
tether_status tether__watermark_raise_locked(struct tether__refs *refs,
                                             struct tether__peer *creator,
                                             tether_rref_id id);
/* Marks the watermark as ended: the peer has a later start or is dropped, so no creation of this
 * start comes any more. */
void tether__watermark_retire_locked(struct tether__refs *refs, struct tether__watermark *mark);
/* Returns the watermark of the creator's start in `id`, and makes it if there is none. NULL: no
 * memory. */
struct tether__watermark *tether__watermark_locked(struct tether__refs *refs, tether_rref_id id);
/* Frees a watermark that has no counter yet and no awaited objects. */
void tether__watermark_forget_locked(struct tether__refs *refs, struct tether__watermark *mark);

#define TETHER__WAITING_SLICE 64 /* the default of refs->waiting_slice */

/* Returns whether one more request of the peer may wait. The limit is the number of calls that a
 * peer may have under way, so a peer that keeps the protocol never reaches it. */
bool tether__may_wait_locked(struct tether__refs *refs, struct tether__peer *peer);
/* Makes a request wait. `there` is the object, kept until the answer (NULL: it is not there yet).
 * False: no memory.
 */
bool tether__waiting_add_locked(struct tether__refs *refs,
                                const struct tether__waiting *request,
                                tether_rref *there);
/* Returns whether the object will not come, because its creator was restarted, or the session for
 * it ended, before this worker met the creator again. (A fence handles sessions that end while
 * this worker is in them.) */
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
/* Answers requests for objects that the watermarks show to be gone: a slice of them at once, the
 * rest from the timer. */
void tether__waiting_answer_passed(struct tether__refs *refs);
/* Makes the timer continue with the requests that a slice has left. False: the agent stops and
 * waits for no timer, so the caller must continue itself. */
bool tether__waiting_leave_to_timer(struct tether__refs *refs);
/* Drops the fork-request: its sender has released the reference, so no fork may be added. */
void tether__waiting_drop_fork_locked(struct tether__refs *refs,
                                      tether_rref_id fork,
                                      struct tether__peer *peer);
/* Takes a request out of all lists, and puts it into a list of decided requests by `node`. */
void tether__waiting_decide_locked(struct tether__refs *refs,
                                   struct tether__waiting *waiting,
                                   struct tether__list *decided,
                                   tether_status status,
                                   const char *why);
void tether__waiting_answer_decided(struct tether__list *decided);
/* Handles the loss of a creator: its session has ended, or (`not_there`) it is missing in the
 * directory. Checks the requests for its objects again: a slice at once, the rest from the
 * timer. */
void tether__waiting_creator_lost(struct tether__refs *refs,
                                  struct tether__peer *peer,
                                  bool not_there);

/* Continues with requests of lost creators that an earlier slice left. Returns when to call it
 * again. */
int64_t tether__waiting_go_on_with_losses(struct tether__refs *refs, int64_t now);
/* Checks a slice of the requests whose creators have a new session or start. Returns when to call
 * it again. */
int64_t tether__waiting_look_at_creators(struct tether__refs *refs, int64_t now);

#endif
