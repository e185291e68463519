/* The session: a pure function of what both ends have said. See session.h for the table.
 *
 * The four numbers form a lattice: incarnations grow on their own; fence counts belong to a pair of
 * incarnations and start at 0 with it. merge() takes the least upper bound of what I have and what
 * a hello names, so the order in which hellos arrive, and on which stream, does not matter.
 */
#include "rpc/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "protos/rpc.pb-c.h"
#include "rpc/wire.h"

/* No peer may keep the other waiting for its death longer than this, nor spend its fences. */
#define MAX_LEASE_MS (3600u * 1000)
#define MAX_FENCE (UINT64_C(1) << 62)

#define HELLO_ARENA_BYTES 1024

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

void tether__session_init(struct tether__session *session,
                          const struct tether__self *self,
                          const char *peer_name,
                          uint32_t peer_id,
                          uint64_t peer_incarnation)
{
    *session = (struct tether__session){
        .self = self,
        .peer_id = peer_id,
        .peer_incarnation = peer_incarnation,
        .epoch = 1,
        .lease_ms = self->lease_ms,
    };
    snprintf(session->peer_name, sizeof session->peer_name, "%s", peer_name);
}

/* ---- Saying hello ---- */

/* protobuf-c wants char *, and does not write. */
static char *text(const char *or_null)
{
    return (char *)(uintptr_t)(or_null ? or_null : "");
}

tether_status tether__session_hello(const struct tether__session *session,
                                    uint64_t dial,
                                    uint64_t received,
                                    tether_buf *body)
{
    const struct tether__self *self = session->self;
    Tether__Hello hello = TETHER__HELLO__INIT;
    hello.version = TETHER__WIRE_VERSION;
    hello.group = text(self->group);
    hello.from_name = text(self->name);
    hello.from_id = self->id;
    hello.from_incarnation = self->incarnation;
    hello.from_fence = session->my_fence;
    hello.to_name = text(session->peer_name);
    hello.to_incarnation = session->peer_incarnation;
    hello.to_fence = session->peer_fence;
    hello.received = received;
    hello.lease_ms = self->lease_ms;
    hello.token = text(self->token);
    hello.address = text(self->address);
    hello.max_message_bytes = self->max_message_bytes;
    hello.dial = dial;
    return tether__wire_pack(body, &hello.base);
}

/* ---- Hearing one ---- */

/* Takes as long for a wrong token as for a right one of the same length. */
static bool same_secret(const char *mine, const char *theirs)
{
    size_t mine_len = strlen(mine), len = strlen(theirs);
    unsigned difference = mine_len != len;
    for (size_t i = 0; i < len; i++)
        difference |= (unsigned char)theirs[i] ^ (unsigned char)mine[mine_len ? i % mine_len : 0];
    return difference == 0;
}

/* What a peer says instead of its hello when it does not want ours. */
static tether_status take_refusal(const Tether__Hello *hello, tether_error *reterr)
{
    bool is_told = hello->refused == TETHER_EAUTH || hello->refused == TETHER_EFENCED;
    return tether_error_set(reterr, is_told ? (tether_status)hello->refused : TETHER_EPERM,
                            "it refuses this worker: %.150s", hello->reason);
}

/* All that can be judged without knowing the peer. */
static tether_status check_hello(const struct tether__self *self,
                                 const Tether__Hello *hello,
                                 tether_error *reterr)
{
    if (hello->version != TETHER__WIRE_VERSION)
        return tether_error_set(reterr, TETHER_ENOTSUP,
                                "a hello of wire version %u, but this worker speaks version %d: "
                                "run the same release everywhere",
                                hello->version, TETHER__WIRE_VERSION);
    if (!tether__name_valid(hello->from_name))
        return tether_error_set(reterr, TETHER_EINVAL,
                                "a hello whose sender's name is not 1 to %d of [A-Za-z0-9_:.-]",
                                TETHER__MAX_NAME);
    if (!same_secret(self->token ? self->token : "", hello->token))
        return tether_error_set(reterr, TETHER_EAUTH,
                                "worker '%s' has not the token of this group: give all workers "
                                "the same",
                                hello->from_name);
    if (strcmp(hello->group, self->group) != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' belongs to another group than '%s'", hello->from_name,
                                self->group);
    if (strcmp(hello->to_name, self->name) != 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' looks for another worker than '%s', which is here",
                                hello->from_name, self->name);
    if (hello->from_incarnation == 0 || hello->from_fence > MAX_FENCE ||
        hello->to_fence > MAX_FENCE || strlen(hello->address) > TETHER__MAX_ADDRESS)
        return tether_error_set(reterr, TETHER_ECORRUPT, "a malformed hello of worker '%s'",
                                hello->from_name);
    if (hello->max_message_bytes && self->max_message_bytes &&
        hello->max_message_bytes != self->max_message_bytes)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' has max_message_bytes %" PRIu64 ", this one %" PRIu64
                                ": give all workers the same",
                                hello->from_name, hello->max_message_bytes,
                                self->max_message_bytes);
    if (hello->to_incarnation > self->incarnation)
        return tether_error_set(reterr, TETHER_EFENCED,
                                "worker '%s' knows a later start of '%s' than this one (%" PRIu64
                                ", this is %" PRIu64 "): this one has been replaced",
                                hello->from_name, self->name, hello->to_incarnation,
                                self->incarnation);
    return TETHER_OK;
}

static tether_status read_hello(tether_bytes body,
                                struct tether__arena *arena,
                                const Tether__Hello **ret_hello,
                                tether_error *reterr)
{
    const void *message;
    tether_status st = tether__wire_unpack(&tether__hello__descriptor, body, arena, &message);
    if (st != TETHER_OK)
        return tether_error_set(reterr, st, "a hello of %zu bytes cannot be read: %s", body.len,
                                tether_status_text(st));
    *ret_hello = message;
    return TETHER_OK;
}

/* The first that is heard on a stream that the peer has dialled. */
static tether_status check_stranger(const struct tether__self *self,
                                    const Tether__Hello *hello,
                                    tether_error *reterr)
{
    if (hello->refused)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "a hello that refuses before one was said");
    return check_hello(self, hello, reterr);
}

/* What only who knows the peer can judge. */
static tether_status check_peer(const struct tether__session *session,
                                const Tether__Hello *hello,
                                tether_error *reterr)
{
    if (strcmp(hello->from_name, session->peer_name) != 0)
        return tether_error_set(reterr, TETHER_EINVAL, "worker '%s' answers instead of '%s'",
                                hello->from_name, session->peer_name);
    if (hello->from_incarnation < session->peer_incarnation)
        return tether_error_set(
            reterr, TETHER_EFENCED,
            "worker '%s', started as %" PRIu64 ", has been replaced by a later start (%" PRIu64 ")",
            hello->from_name, hello->from_incarnation, session->peer_incarnation);
    if (hello->from_incarnation == session->peer_incarnation && hello->from_id != session->peer_id)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "worker '%s' says that its id is %u, but it is %u",
                                hello->from_name, hello->from_id, session->peer_id);
    if (hello->dial && hello->from_incarnation == session->peer_incarnation &&
        hello->dial < session->peer_dial)
        return tether_error_set(reterr, TETHER_ECANCELED,
                                "worker '%s' has dialled again since this stream",
                                hello->from_name);
    return TETHER_OK;
}

static uint64_t greater(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Another session begins, which no stream has been up in. */
static void renew(struct tether__session *session)
{
    session->epoch++;
    session->met = false;
    session->watching = false;
}

/* A later start of the peer: whatever was counted belongs to the former one. */
static void move_to_incarnation(struct tether__session *session,
                                uint32_t peer_id,
                                uint64_t incarnation)
{
    session->peer_id = peer_id;
    session->peer_incarnation = incarnation;
    session->peer_dial = 0;
    session->my_fence = session->peer_fence = 0;
    renew(session);
}

/* Takes the greater of each number. */
static enum tether__hello_verdict merge(struct tether__session *session, const Tether__Hello *hello)
{
    enum tether__hello_verdict verdict = TETHER__HELLO_ACCEPT;
    if (hello->from_incarnation > session->peer_incarnation) {
        if (session->peer_incarnation != 0)
            verdict = TETHER__HELLO_FENCED;
        move_to_incarnation(session, hello->from_id, hello->from_incarnation);
    }
    if (hello->to_incarnation != session->self->incarnation)
        return verdict; /* its counts are of a former start of mine */

    uint64_t mine = greater(session->my_fence, hello->to_fence);
    uint64_t theirs = greater(session->peer_fence, hello->from_fence);
    if (mine == session->my_fence && theirs == session->peer_fence)
        return verdict;
    /* Where no stream was ever up nothing can have been lost, so there is nothing to reset. */
    if (session->met)
        verdict = TETHER__HELLO_FENCED_BY_PEER;
    session->my_fence = mine;
    session->peer_fence = theirs;
    renew(session);
    return verdict;
}

struct tether__hello_result tether__session_on_hello(struct tether__session *session,
                                                     tether_bytes body,
                                                     tether_error *reterr)
{
    struct tether__hello_result result = {.verdict = TETHER__HELLO_REJECT};
    const struct tether__self *self = session->self;
    TETHER__ARENA(arena, HELLO_ARENA_BYTES);
    const Tether__Hello *hello = NULL;
    tether_status st = read_hello(body, &arena, &hello, reterr);
    if (st == TETHER_OK)
        st = hello->refused ? take_refusal(hello, reterr) : check_hello(self, hello, reterr);
    result.replaced = st == TETHER_EFENCED;
    result.refused = st == TETHER_EPERM || st == TETHER_EAUTH;
    if (st == TETHER_OK && check_peer(session, hello, reterr) == TETHER_OK) {
        uint32_t lease_ms = hello->lease_ms < MAX_LEASE_MS ? hello->lease_ms : MAX_LEASE_MS;
        session->lease_ms = lease_ms > self->lease_ms ? lease_ms : self->lease_ms;
        result.verdict = merge(session, hello);
        session->peer_dial = greater(session->peer_dial, hello->dial);
        result.up = hello->to_incarnation == self->incarnation &&
                    hello->to_fence == session->my_fence &&
                    hello->from_fence == session->peer_fence;
        if (result.up) {
            session->met = true;
            result.received = hello->received;
        } else if (result.verdict == TETHER__HELLO_ACCEPT) {
            result.verdict = TETHER__HELLO_ANSWER;
        }
    }
    tether__arena_fini(&arena);
    return result;
}

tether_status tether__session_check(const struct tether__session *session,
                                    tether_bytes body,
                                    tether_error *reterr)
{
    TETHER__ARENA(arena, HELLO_ARENA_BYTES);
    const Tether__Hello *hello = NULL;
    tether_status st = read_hello(body, &arena, &hello, reterr);
    if (st == TETHER_OK)
        st = check_stranger(session->self, hello, reterr);
    if (st == TETHER_OK)
        st = check_peer(session, hello, reterr);
    tether__arena_fini(&arena);
    return st;
}

tether_status tether__hello_peek(const struct tether__self *self,
                                 tether_bytes body,
                                 struct tether__hello_peek *ret_peek,
                                 tether_error *reterr)
{
    TETHER__ARENA(arena, HELLO_ARENA_BYTES);
    const Tether__Hello *hello = NULL;
    tether_status st = read_hello(body, &arena, &hello, reterr);
    if (st == TETHER_OK)
        st = check_stranger(self, hello, reterr);
    if (st == TETHER_OK) {
        snprintf(ret_peek->from_name, sizeof ret_peek->from_name, "%s", hello->from_name);
        snprintf(ret_peek->address, sizeof ret_peek->address, "%s", hello->address);
        ret_peek->from_id = hello->from_id;
        ret_peek->from_incarnation = hello->from_incarnation;
    }
    tether__arena_fini(&arena);
    return st;
}

/* ---- Fences and the lease ---- */

void tether__session_fence(struct tether__session *session)
{
    session->my_fence++;
    renew(session);
}

bool tether__session_restarted(struct tether__session *session,
                               uint32_t peer_id,
                               uint64_t incarnation)
{
    if (incarnation <= session->peer_incarnation)
        return false;
    move_to_incarnation(session, peer_id, incarnation);
    return true;
}

void tether__session_heard(struct tether__session *session, int64_t now)
{
    session->heard_at = session->pinged_at = now;
    session->watching = true;
}

enum tether__lease_verdict tether__session_tick(struct tether__session *session,
                                                int64_t now,
                                                int64_t *ret_next)
{
    *ret_next = TETHER__NEVER;
    if (!session->watching)
        return TETHER__LEASE_FINE;
    int64_t lease = (int64_t)session->lease_ms * TETHER__NS_PER_MS;
    int64_t over_at = session->heard_at + lease, ping_at = session->pinged_at + lease / 3;
    if (now >= over_at)
        return TETHER__LEASE_OVER;
    enum tether__lease_verdict verdict = TETHER__LEASE_FINE;
    if (now >= ping_at) {
        verdict = TETHER__LEASE_PING;
        session->pinged_at = now;
        ping_at = now + lease / 3;
    }
    *ret_next = ping_at < over_at ? ping_at : over_at;
    return verdict;
}
