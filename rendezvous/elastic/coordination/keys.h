/* The coordination keys: small values through which a leader and its followers talk in the store.
 * Each key has one kind of writer, which keeps a large group cheap (docs/scale.md):
 *
 *     key                        value                              writer
 *     summary                    the leader and the state in brief  the leader, compare-and-set
 *     requests                   how many requests have a number    every node, by add
 *     request/<n>                join, leave or close               the node that asks, once
 *     assignment/<term>/<node>   the list and rank of a node        the leader
 *     done/<round>               exists once the round is complete  the leader
 *     beat/<node>                a growing number (heartbeat.h)     the node
 *
 * `store` is always the store under the prefix of the run, and `timeout_ms` the time that the call
 * may take. Any thread.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_COORDINATION_KEYS_H
#define TETHER_RENDEZVOUS_ELASTIC_COORDINATION_KEYS_H

#include "base/bytes.h"
#include "rendezvous/elastic/rules/actions.h"
#include "rendezvous/elastic/sync/holder.h"
#include "rendezvous/store.h"

struct tether__rdzv_summary {
    uint64_t term, beat, edition;
    uint64_t assignments_term;           /* the term whose assignments are in force */
    char leader[TETHER__RDZV_NODE_TEXT]; /* empty: no node leads */

    uint64_t round;
    bool complete, closed;
    int32_t world_size;
    bool last_call; /* a last call runs, and the two fields below are valid */
    uint64_t last_calls;
    int64_t last_call_left_ms;
    struct tether__rdzv_others counts;
    uint64_t applied; /* the state contains the requests up to this number */
};

/* Reads the summary. `ret_raw` (initialised) gets its bytes, which summary_swap() takes as the
 * expected value. TETHER_ENOTFOUND: no leader has written one yet, and `ret_raw` is empty.
 * TETHER_ECORRUPT. */
tether_status tether__rdzv_summary_read(tether_store *store,
                                        int timeout_ms,
                                        struct tether__rdzv_summary *ret_summary,
                                        tether_buf *ret_raw,
                                        tether_error *reterr);

/* Writes the summary if its stored bytes still equal `*raw`; then replaces `*raw` by the new bytes.
 */
tether_status tether__rdzv_summary_swap(tether_store *store,
                                        const struct tether__rdzv_summary *summary,
                                        int timeout_ms,
                                        tether_buf *raw,
                                        bool *ret_swapped,
                                        tether_error *reterr);

enum tether__rdzv_request_kind { TETHER__RDZV_JOIN = 1, TETHER__RDZV_LEAVE, TETHER__RDZV_CLOSE };

/* Writes a request and gives its number. The leader sees the requests of one node in the order in
 * which the node posted them. */
tether_status tether__rdzv_request_post(tether_store *store,
                                        enum tether__rdzv_request_kind kind,
                                        const struct tether__rdzv_self *self,
                                        int timeout_ms,
                                        uint64_t *ret_number,
                                        tether_error *reterr);

/* Gives the number of the latest request. */
tether_status tether__rdzv_request_count(tether_store *store,
                                         int timeout_ms,
                                         uint64_t *ret_count,
                                         tether_error *reterr);

/* Calls `fn` for the requests `first` ... `last` in order. Stops when `fn` fails, or at a request
 * that is not in the store: its node has taken the number but not written the request yet. Gives
 * how many requests `fn` took. A request that can't be decoded reaches `fn` as kind 0. `self` is
 * LENT for the call. */
typedef tether_status tether__rdzv_request_fn(void *userdata,
                                              enum tether__rdzv_request_kind kind,
                                              const struct tether__rdzv_self *self,
                                              tether_error *reterr);
tether_status tether__rdzv_request_read(tether_store *store,
                                        uint64_t first,
                                        uint64_t last,
                                        int timeout_ms,
                                        tether__rdzv_request_fn *fn,
                                        void *userdata,
                                        uint64_t *ret_taken,
                                        tether_error *reterr);

/* Deletes requests that the state contains. Ignores errors: a key that stays does no harm. */
void tether__rdzv_request_delete(tether_store *store,
                                 uint64_t first,
                                 uint64_t last,
                                 int timeout_ms);

enum tether__rdzv_list {
    TETHER__RDZV_NO_LIST = 0,
    TETHER__RDZV_PARTICIPANTS,
    TETHER__RDZV_WAIT_LIST,
    TETHER__RDZV_REDUNDANCY_LIST,
};

struct tether__rdzv_assignment {
    enum tether__rdzv_list list;
    uint64_t round;
    bool complete; /* the round is complete, and the two fields below are valid */
    int32_t rank, world_size;
};

/* An assignment and the node that it belongs to. */
struct tether__rdzv_named_assignment {
    const char *node; /* the node as text; LENT */
    struct tether__rdzv_assignment assignment;
};

/* Gives TETHER__RDZV_NO_LIST when the node has no assignment of this term. */
tether_status tether__rdzv_assignment_read(tether_store *store,
                                           uint64_t term,
                                           const struct tether__rdzv_node *node,
                                           int timeout_ms,
                                           struct tether__rdzv_assignment *ret_assignment,
                                           tether_error *reterr);
tether_status tether__rdzv_assignment_write(tether_store *store,
                                            uint64_t term,
                                            const struct tether__rdzv_named_assignment *assignments,
                                            size_t n,
                                            int timeout_ms,
                                            tether_error *reterr);

/* Deletes the assignment of a node from an old term. Ignores errors, because no node reads it any
 * more. */
void tether__rdzv_assignment_delete(tether_store *store,
                                    uint64_t term,
                                    const char *node,
                                    int timeout_ms);

/* Writes done/<round>, which wakes the nodes that wait for the round, and deletes the one of two
 * rounds before. */
tether_status tether__rdzv_done_write(tether_store *store,
                                      uint64_t round,
                                      int timeout_ms,
                                      tether_error *reterr);

/* Make `pause` end as soon as `round` is complete, or as soon as request `number` is in the store.
 */
void tether__rdzv_pause_for_round(struct tether__rdzv_pause *pause, uint64_t round);
void tether__rdzv_pause_for_request(struct tether__rdzv_pause *pause, uint64_t number);

#endif
