/* The pairing: a pure function of what both ends have said. See pairing.h for the table.
 *
 * The four numbers of a session form a lattice: incarnations grow on their own; fence counts
 * belong to a pair of incarnations and start at 0 with it. merge() takes the least upper bound of
 * what I have and what a state names, so the order in which states arrive, and on which stream,
 * does not matter.
 */
#include "rpc/handshake/pairing.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"

bool tether__name_is_observer(const char *name)
{
    /* this runs for every call, and most names differ in the first character */
    return name[0] == TETHER__OBSERVER_PREFIX[0] &&
           strncmp(name, TETHER__OBSERVER_PREFIX, strlen(TETHER__OBSERVER_PREFIX)) == 0;
}

void tether__name_certified(const char *name, char ret_name[TETHER__MAX_NAME + 1])
{
    bool observes = tether__name_is_observer(name);
    snprintf(ret_name, TETHER__MAX_NAME + 1, "%s",
             observes ? name + strlen(TETHER__OBSERVER_PREFIX) : name);
    char *dot = observes ? strrchr(ret_name, '.') : NULL;
    if (dot)
        *dot = '\0';
}

bool tether__name_valid(const char *name)
{
    size_t len = 0;
    for (; name[len]; len++) {
        char c = name[len];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool digit = c >= '0' && c <= '9';
        if (len == TETHER__MAX_NAME || !(letter || digit || strchr("_:.-", c)))
            return false;
    }
    return len > 0;
}

void tether__pairing_init(struct tether__pairing *pairing,
                          const struct tether__self *self,
                          const char *peer_name,
                          uint32_t peer_id,
                          uint64_t peer_incarnation)
{
    *pairing = (struct tether__pairing){
        .self = self,
        .peer_id = peer_id,
        .peer_incarnation = peer_incarnation,
        .version = 1,
        .lease_ms = self->lease_ms,
    };
    snprintf(pairing->peer_name, sizeof pairing->peer_name, "%s", peer_name);
}

/* ---- Saying ---- */

Tether__State tether__pairing_state(const struct tether__pairing *pairing,
                                    uint64_t dial,
                                    uint64_t received)
{
    const struct tether__self *self = pairing->self;
    Tether__State state = TETHER__STATE__INIT;
    state.from_id = self->id;
    state.from_incarnation = self->incarnation;
    state.from_fence = pairing->my_fence;
    state.to_incarnation = pairing->may_be_known ? 0 : pairing->peer_incarnation;
    state.to_fence = pairing->peer_fence;
    state.received = received;
    state.lease_ms = self->lease_ms;
    state.max_message_bytes = self->max_message_bytes;
    state.dial = dial;
    return state;
}

/* ---- Hearing ---- */

static bool same_start(const struct tether__pairing *pairing, const Tether__State *state)
{
    return state->from_incarnation == pairing->peer_incarnation;
}

/* Fence counts and dials go on from 0 behind the last number, and `a` is later when it is less
 * than half of all numbers ahead of `b`. So a peer that sends false numbers cannot exhaust them:
 * after any lie to one end, the other end's next number is later, or the other end learns a later
 * one and goes on. */
static bool is_later(uint64_t a, uint64_t b)
{
    const uint64_t half = UINT64_C(1) << 63;
    uint64_t ahead = a - b;
    return ahead == half ? a > b : ahead != 0 && ahead < half;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return is_later(a, b) ? a : b;
}

void tether__pairing_reason(const char *from, char ret_text[TETHER__REASON_SIZE])
{
    /* each byte takes four characters at most when escaped */
    char escaped[4 * TETHER__REASON_SIZE];
    tether__text_fit(ret_text, TETHER__REASON_SIZE, tether_bytes_str(from));
    tether__text_escape(escaped, sizeof escaped, tether_bytes_str(ret_text), TETHER__TEXT_LINE);
    tether__text_fit(ret_text, TETHER__REASON_SIZE, tether_bytes_str(escaped));
}

static tether_status take_refusal(const Tether__State *state, tether_error *reterr)
{
    char reason[TETHER__REASON_SIZE];
    tether__pairing_reason(state->reason, reason);
    bool has_status = state->refused == TETHER_EAUTH || state->refused == TETHER_EFENCED ||
                      state->refused == TETHER_ECANCELED;
    return tether_error_set(reterr, has_status ? (tether_status)state->refused : TETHER_EPERM,
                            "it refuses this worker: %s", reason);
}

static tether_status check_state(const struct tether__pairing *pairing,
                                 const Tether__State *state,
                                 tether_error *reterr)
{
    const struct tether__self *self = pairing->self;
    if (state->from_incarnation == 0)
        return tether_error_set(reterr, TETHER_ECORRUPT, "worker '%s' sent a malformed state",
                                pairing->peer_name);
    if (state->max_message_bytes && self->max_message_bytes &&
        state->max_message_bytes != self->max_message_bytes)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' has max_message_bytes %" PRIu64 ", this one %" PRIu64
                                ": give all workers the same",
                                pairing->peer_name, state->max_message_bytes,
                                self->max_message_bytes);
    if (state->to_incarnation > self->incarnation)
        return tether_error_set(reterr, TETHER_EFENCED,
                                "worker '%s' knows a later start of '%s' than this one (%" PRIu64
                                ", this is %" PRIu64 "): this one has been replaced",
                                pairing->peer_name, self->name, state->to_incarnation,
                                self->incarnation);
    return TETHER_OK;
}

static tether_status check_peer(const struct tether__pairing *pairing,
                                const Tether__State *state,
                                tether_error *reterr)
{
    if (state->from_incarnation < pairing->peer_incarnation)
        return tether_error_set(
            reterr, TETHER_EFENCED,
            "worker '%s', started as %" PRIu64 ", has been replaced by a later start (%" PRIu64 ")",
            pairing->peer_name, state->from_incarnation, pairing->peer_incarnation);
    if (same_start(pairing, state) && state->from_id != pairing->peer_id)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' says that its id is %u, but it is %u",
                                pairing->peer_name, state->from_id, pairing->peer_id);
    if (state->dial && same_start(pairing, state) && is_later(pairing->peer_dial, state->dial))
        return tether_error_set(reterr, TETHER_ECANCELED,
                                "worker '%s' has dialled again since this stream",
                                pairing->peer_name);
    return TETHER_OK;
}

/* Begins another session, in which no stream has been up yet. */
static void renew(struct tether__pairing *pairing)
{
    pairing->version++;
    pairing->met = false;
    pairing->watching = false;
}

/* Switches to a later start of the peer. All counts belonged to the former start, so they begin
 * again. */
static void move_to_incarnation(struct tether__pairing *pairing,
                                uint32_t peer_id,
                                uint64_t incarnation)
{
    pairing->peer_id = peer_id;
    pairing->peer_incarnation = incarnation;
    pairing->peer_dial = 0;
    pairing->my_fence = pairing->peer_fence = 0;
    pairing->may_be_known = incarnation <= atomic_load(&pairing->self->forgotten_start);
    renew(pairing);
}

/* Takes the later one of each number from the state. */
static enum tether__state_verdict merge(struct tether__pairing *pairing, const Tether__State *state)
{
    enum tether__state_verdict verdict = TETHER__STATE_ACCEPT;
    if (state->from_incarnation > pairing->peer_incarnation) {
        if (pairing->peer_incarnation != 0)
            verdict = TETHER__STATE_FENCED;
        move_to_incarnation(pairing, state->from_id, state->from_incarnation);
    }
    if (state->to_incarnation != pairing->self->incarnation) {
        /* The state is about a former start of this worker, or about none: the peer knows no
         * present counts. */
        /* the peer may have forgotten this worker, and the session with it */
        if (pairing->may_be_known) {
            pairing->may_be_known = false;
            pairing->my_fence++;
            renew(pairing);
        }
        return verdict;
    }

    uint64_t mine = later(pairing->my_fence, state->to_fence) + pairing->may_be_known;
    pairing->may_be_known = false;
    uint64_t theirs = later(pairing->peer_fence, state->from_fence);
    if (mine == pairing->my_fence && theirs == pairing->peer_fence)
        return verdict;
    /* If no stream was ever up in the session, nothing can have been lost, so there is nothing to
     * reset. */
    if (pairing->met)
        verdict = TETHER__STATE_FENCED_BY_PEER;
    pairing->my_fence = mine;
    pairing->peer_fence = theirs;
    renew(pairing);
    return verdict;
}

struct tether__state_result tether__pairing_on_state(struct tether__pairing *pairing,
                                                     const Tether__State *state,
                                                     tether_error *reterr)
{
    struct tether__state_result result = {.verdict = TETHER__STATE_REJECT};
    const struct tether__self *self = pairing->self;
    tether_status st =
        state->refused ? take_refusal(state, reterr) : check_state(pairing, state, reterr);
    result.replaced = st == TETHER_EFENCED;
    result.refused = st == TETHER_EPERM || st == TETHER_EAUTH;
    if (st == TETHER_OK && check_peer(pairing, state, reterr) == TETHER_OK) {
        uint32_t lease_ms =
            state->lease_ms < TETHER__MAX_LEASE_MS ? state->lease_ms : TETHER__MAX_LEASE_MS;
        pairing->lease_ms = lease_ms > self->lease_ms ? lease_ms : self->lease_ms;
        result.verdict = merge(pairing, state);
        if (state->dial)
            pairing->peer_dial = later(pairing->peer_dial, state->dial);
        result.up = state->to_incarnation == self->incarnation &&
                    state->to_fence == pairing->my_fence &&
                    state->from_fence == pairing->peer_fence;
        if (result.up) {
            pairing->met = true;
            result.received = state->received;
        } else if (result.verdict == TETHER__STATE_ACCEPT) {
            result.verdict = TETHER__STATE_ANSWER;
        }
    }
    return result;
}

tether_status tether__pairing_check(const struct tether__pairing *pairing,
                                    const Tether__State *state,
                                    tether_error *reterr)
{
    if (state->refused)
        return take_refusal(state, reterr);
    tether_status st = check_state(pairing, state, reterr);
    return st == TETHER_OK ? check_peer(pairing, state, reterr) : st;
}

uint64_t tether__pairing_next_dial(uint64_t dial, const Tether__State *refusal)
{
    return refusal->refused == TETHER_ECANCELED ? later(dial, refusal->dial) : dial;
}

/* ---- Fences and the lease ---- */

void tether__pairing_fence(struct tether__pairing *pairing)
{
    pairing->my_fence++;
    renew(pairing);
}

bool tether__pairing_restarted(struct tether__pairing *pairing,
                               uint32_t peer_id,
                               uint64_t incarnation)
{
    if (incarnation <= pairing->peer_incarnation)
        return false;
    move_to_incarnation(pairing, peer_id, incarnation);
    return true;
}

void tether__pairing_forget(struct tether__pairing *pairing)
{
    move_to_incarnation(pairing, 0, 0);
    pairing->may_be_known = false;
}

void tether__pairing_heard(struct tether__pairing *pairing, int64_t now)
{
    pairing->heard_at = pairing->pinged_at = now;
    pairing->watching = true;
}

enum tether__lease_verdict tether__pairing_tick(struct tether__pairing *pairing,
                                                int64_t now,
                                                int64_t *ret_next)
{
    *ret_next = TETHER__NEVER;
    if (!pairing->watching)
        return TETHER__LEASE_FINE;
    int64_t lease = (int64_t)pairing->lease_ms * TETHER__NS_PER_MS;
    int64_t over_at = pairing->heard_at + lease, ping_at = pairing->pinged_at + lease / 3;
    if (now >= over_at)
        return TETHER__LEASE_OVER;
    enum tether__lease_verdict verdict = TETHER__LEASE_FINE;
    if (now >= ping_at) {
        verdict = TETHER__LEASE_PING;
        pairing->pinged_at = now;
        ping_at = now + lease / 3;
    }
    *ret_next = ping_at < over_at ? ping_at : over_at;
    return verdict;
}
