/* What the parts of a member know of each other. */
#ifndef TETHER_RENDEZVOUS_DYNAMIC_MEMBER_INTERNAL_H
#define TETHER_RENDEZVOUS_DYNAMIC_MEMBER_INTERNAL_H

#include "rendezvous/dynamic/member.h"

/* leader.c */

/* Tries to become the leader of the next term; `*ret_leads` says whether it worked. The head must
 * be as last read. */
tether_status tether__rdzv_lead_begin(struct tether__rdzv_member_holder *member,
                                      int64_t deadline,
                                      bool *ret_leads,
                                      tether_error *reterr);

/* What sync() does on the leader. It may not be one any more afterwards: LOST then, if anything had
 * been changed. */
tether_status tether__rdzv_lead_sync(struct tether__rdzv_member_holder *member,
                                     int64_t deadline,
                                     enum tether__rdzv_sync *ret_sync,
                                     tether_error *reterr);

void tether__rdzv_lead_plan(const struct tether__rdzv_member_holder *member,
                            struct tether__rdzv_pause *pause);

/* Stops leading; `resign`: tells the others. */
void tether__rdzv_lead_end(struct tether__rdzv_member_holder *member, bool resign, int timeout_ms);

/* fold.c: changes to the full state, which is marked dirty. Memory is all that can be wanting, and
 * for fold() the store. */

/* Does what a node wishes. */
tether_status tether__rdzv_grant(struct tether__rdzv_member_holder *member,
                                 enum tether__rdzv_wish_kind kind,
                                 const struct tether__rdzv_self *self,
                                 tether_error *reterr);

/* Takes the wishes that have come. */
tether_status tether__rdzv_fold(struct tether__rdzv_member_holder *member,
                                int timeout_ms,
                                tether_error *reterr);

/* Does what follows from the state and the time, whoever's turn it would be. */
tether_status tether__rdzv_settle(struct tether__rdzv_member_holder *member, tether_error *reterr);

/* publish.c */

/* Brings places and head in line with the state, or only the head's beat where that is due. A
 * leader that finds itself deposed stops being one. */
tether_status tether__rdzv_publish(struct tether__rdzv_member_holder *member,
                                   int timeout_ms,
                                   tether_error *reterr);
void tether__rdzv_publish_fini(struct tether__rdzv_member_holder *member);

/* follower.c */

/* What sync() does on the others. It may lead afterwards; then nothing has been done yet. */
tether_status tether__rdzv_follow_sync(struct tether__rdzv_member_holder *member,
                                       int64_t deadline,
                                       enum tether__rdzv_sync *ret_sync,
                                       tether_error *reterr);
void tether__rdzv_follow_plan(const struct tether__rdzv_member_holder *member,
                              struct tether__rdzv_pause *pause);

/* member.c */

/* Sends the heartbeat that is wanted, if one is. */
tether_status tether__rdzv_member_beat(struct tether__rdzv_member_holder *member,
                                       int timeout_ms,
                                       tether_error *reterr);

static inline int64_t tether__rdzv_interval_ns(const struct tether__rdzv_member_holder *member)
{
    return member->settings->keep_alive_interval_ms * TETHER__NS_PER_MS;
}

#endif
