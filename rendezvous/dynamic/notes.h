/* The notes that nodes leave each other in the store, beside the state itself. All are small, and
 * who writes which is what keeps a large group cheap (docs/scale.md):
 *
 *     head               who leads, and the state in brief    the leader, by compare-and-set
 *     wishes             how many wishes there have been      everybody, by add
 *     wish/<n>           join, leave or close, please         the node that wishes, once
 *     place/<term>/<node>  which list the node is in          the leader
 *     done/<round>       exists once the round is complete    the leader
 *     beat/<node>        a number that goes up (pulse.h)      the node
 *
 * Every function takes the time that it may last. Any thread; the struct is immutable.
 */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_NOTES_H
#define TETHER_RENDEZVOUS_DYNAMIC_NOTES_H

#include "base/bytes.h"
#include "rendezvous/dynamic/actions.h"
#include "rendezvous/dynamic/holder.h"
#include "rendezvous/store.h"

struct tether__rdzv_notes {
    tether_store *store; /* under the prefix of the rendezvous; borrowed */
};

struct tether__rdzv_head {
    uint64_t term, beat, edition;
    uint64_t places;                     /* the term whose places are in force */
    char leader[TETHER__RDZV_NODE_TEXT]; /* empty: nobody */

    uint64_t round;
    bool complete, closed;
    int32_t world_size;
    bool last_call; /* the two below count */
    uint64_t last_calls;
    int64_t last_call_left_ms;
    struct tether__rdzv_others counts;
    uint64_t folded;
};

/* Reads the head; `ret_raw` (initialised) gets its bytes, to be given to swap. TETHER_ENOTFOUND:
 * there is none yet, and `ret_raw` is empty. TETHER_ECORRUPT. */
tether_status tether__rdzv_head_read(const struct tether__rdzv_notes *notes,
                                     int timeout_ms,
                                     struct tether__rdzv_head *ret_head,
                                     tether_buf *ret_raw,
                                     tether_error *reterr);

/* Writes the head if its bytes are still `*raw`, which become those of the new one. */
tether_status tether__rdzv_head_swap(const struct tether__rdzv_notes *notes,
                                     const struct tether__rdzv_head *head,
                                     int timeout_ms,
                                     tether_buf *raw,
                                     bool *ret_swapped,
                                     tether_error *reterr);

enum tether__rdzv_wish_kind { TETHER__RDZV_JOIN = 1, TETHER__RDZV_LEAVE, TETHER__RDZV_CLOSE };

/* Leaves a wish; gives its number. Wishes of one node are seen in the order they were left. */
tether_status tether__rdzv_wish_post(const struct tether__rdzv_notes *notes,
                                     enum tether__rdzv_wish_kind kind,
                                     const struct tether__rdzv_self *self,
                                     int timeout_ms,
                                     uint64_t *ret_number,
                                     tether_error *reterr);

/* How many wishes have been numbered. */
tether_status tether__rdzv_wish_count(const struct tether__rdzv_notes *notes,
                                      int timeout_ms,
                                      uint64_t *ret_count,
                                      tether_error *reterr);

/* Hands the wishes `first` ... `last` to `fn`, in order, until one is not there (its node has the
 * number but has not written it, or never will) or `fn` fails; gives how many it took. A wish that
 * can't be read goes to `fn` as kind 0. `self` is LENT for the call. */
typedef tether_status tether__rdzv_wish_fn(void *userdata,
                                           enum tether__rdzv_wish_kind kind,
                                           const struct tether__rdzv_self *self,
                                           tether_error *reterr);
tether_status tether__rdzv_wish_read(const struct tether__rdzv_notes *notes,
                                     uint64_t first,
                                     uint64_t last,
                                     int timeout_ms,
                                     tether__rdzv_wish_fn *fn,
                                     void *userdata,
                                     uint64_t *ret_taken,
                                     tether_error *reterr);

/* Removes wishes that are in the state. Best effort. */
void tether__rdzv_wish_forget(const struct tether__rdzv_notes *notes,
                              uint64_t first,
                              uint64_t last,
                              int timeout_ms);

enum tether__rdzv_list {
    TETHER__RDZV_NO_LIST = 0,
    TETHER__RDZV_PARTICIPANTS,
    TETHER__RDZV_WAIT_LIST,
    TETHER__RDZV_REDUNDANCY_LIST,
};

struct tether__rdzv_place {
    enum tether__rdzv_list list;
    uint64_t round;
    bool complete; /* the round is; the two below count */
    int32_t rank, world_size;
};

/* One of several places to be written together. */
struct tether__rdzv_placing {
    const char *node; /* as text; LENT */
    struct tether__rdzv_place place;
};

/* NO_LIST when there is no such note. */
tether_status tether__rdzv_place_read(const struct tether__rdzv_notes *notes,
                                      uint64_t term,
                                      const struct tether__rdzv_node *node,
                                      int timeout_ms,
                                      struct tether__rdzv_place *ret_place,
                                      tether_error *reterr);
tether_status tether__rdzv_place_write(const struct tether__rdzv_notes *notes,
                                       uint64_t term,
                                       const struct tether__rdzv_placing *placings,
                                       size_t n,
                                       int timeout_ms,
                                       tether_error *reterr);
void tether__rdzv_place_forget(const struct tether__rdzv_notes *notes,
                               uint64_t term,
                               const char *node,
                               int timeout_ms); /* best effort */

/* Tells everybody who waits for it that `round` is complete, and removes the notes of old rounds.
 */
tether_status tether__rdzv_done_write(const struct tether__rdzv_notes *notes,
                                      uint64_t round,
                                      int timeout_ms,
                                      tether_error *reterr);

/* What to wait for: that `round` is complete, or that wish `number` is there. */
void tether__rdzv_pause_for_round(struct tether__rdzv_pause *pause, uint64_t round);
void tether__rdzv_pause_for_wish(struct tether__rdzv_pause *pause, uint64_t number);

#endif
