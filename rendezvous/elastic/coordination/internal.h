/* Functions that the files of a member share. "Leader only": member->leadership is not NULL. */
#ifndef TETHER_RENDEZVOUS_ELASTIC_COORDINATION_INTERNAL_H
#define TETHER_RENDEZVOUS_ELASTIC_COORDINATION_INTERNAL_H

#include "rendezvous/elastic/coordination/member.h"

/* Functions of leader.c. */

/* Tries to become the leader of the next term; `*ret_leads` says whether that worked. The summary
 * must be as last read. */
tether_status tether__rdzv_lead_begin(struct tether__rdzv_member_holder *member,
                                      int64_t deadline,
                                      bool *ret_leads,
                                      tether_error *reterr);

/* sync() of the leader. The member may be a follower afterwards; then the result is LOST if there
 * was a change. */
tether_status tether__rdzv_lead_sync(struct tether__rdzv_member_holder *member,
                                     int64_t deadline,
                                     enum tether__rdzv_sync *ret_sync,
                                     tether_error *reterr);

void tether__rdzv_lead_plan(const struct tether__rdzv_member_holder *member,
                            struct tether__rdzv_pause *pause);

/* Makes the member a follower and frees its leadership. `resigns`: also empties the leader's name
 * in the summary, so that others need not wait for missing heartbeats. */
void tether__rdzv_lead_end(struct tether__rdzv_member_holder *member, bool resigns, int timeout_ms);

/* Frees a leadership. NULL is fine. */
void tether__rdzv_leadership_free(struct tether__rdzv_leadership *leadership);

/* Functions of apply.c. They change the full state and mark it dirty. Leader only. TETHER_ENOMEM,
 * and errors of the store where `timeout_ms` is given. */

/* Applies request `kind` of node `self` to the state. */
tether_status tether__rdzv_apply_request(struct tether__rdzv_member_holder *member,
                                         enum tether__rdzv_request_kind kind,
                                         const struct tether__rdzv_self *self,
                                         tether_error *reterr);

/* Reads the requests that have arrived and applies them. */
tether_status tether__rdzv_apply_requests(struct tether__rdzv_member_holder *member,
                                          int timeout_ms,
                                          tether_error *reterr);

/* Takes the steps that follow from the state and the time, on behalf of all nodes: lets waiting
 * nodes and spares in, completes a round whose last call is over. */
tether_status tether__rdzv_advance_round(struct tether__rdzv_member_holder *member,
                                         tether_error *reterr);

/* Functions of publish.c. */

/* Brings assignments and summary in line with the state, or sends only the summary's beat when that
 * is due. A leader that finds itself deposed becomes a follower. */
tether_status tether__rdzv_publish(struct tether__rdzv_member_holder *member,
                                   int timeout_ms,
                                   tether_error *reterr);
void tether__rdzv_publish_fini(struct tether__rdzv_leadership *leadership);

/* Functions of follower.c. */

/* sync() of a follower. When the member leads afterwards, nothing else has been done yet. */
tether_status tether__rdzv_follow_sync(struct tether__rdzv_member_holder *member,
                                       int64_t deadline,
                                       enum tether__rdzv_sync *ret_sync,
                                       tether_error *reterr);
void tether__rdzv_follow_plan(const struct tether__rdzv_member_holder *member,
                              struct tether__rdzv_pause *pause);

/* Functions of member.c. */

/* Sends a heartbeat if one is due. */
tether_status tether__rdzv_member_beat(struct tether__rdzv_member_holder *member,
                                       int timeout_ms,
                                       tether_error *reterr);

static inline int64_t tether__rdzv_interval_ns(const struct tether__rdzv_member_holder *member)
{
    return member->settings->keep_alive_interval_ms * TETHER__NS_PER_MS;
}

static inline void tether__rdzv_request_clear(struct tether__rdzv_request *request)
{
    *request = (struct tether__rdzv_request){.state = TETHER__RDZV_REQUEST_NONE};
}

#endif
