/* The state as bytes: protobuf (protos/rendezvous.proto), with a magic number and a version, so
 * that the decoder refuses bytes of other programs and releases.
 */
#ifndef TETHER_RENDEZVOUS_ELASTIC_RULES_CODEC_H
#define TETHER_RENDEZVOUS_ELASTIC_RULES_CODEC_H

#include "base/bytes.h"
#include "rendezvous/elastic/rules/state.h"

/* Replaces `ret_bytes` (initialised) by `state`, which must be a full one. Heartbeats are not part
 * of it. The time left of a last call is counted from `now`. */
tether_status tether__rdzv_state_encode(const struct tether__rdzv_state *state,
                                        int64_t now,
                                        tether_buf *ret_bytes,
                                        tether_error *reterr);

/* Fills `ret_state` (uninitialised; fini it) from `bytes`. The deadline of a last call becomes
 * `now` plus the time left; no heartbeats are known. TETHER_ECORRUPT "the rendezvous state is
 * corrupt
 * ...", TETHER_ENOMEM: then `ret_state` needs no fini. */
tether_status tether__rdzv_state_decode(tether_bytes bytes,
                                        int64_t now,
                                        struct tether__rdzv_state *ret_state,
                                        tether_error *reterr);

#endif
