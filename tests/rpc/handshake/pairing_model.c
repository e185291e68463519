#include "tests/rpc/handshake/pairing_model.h"

#include <string.h>

#include "rpc/handshake/pairing.h"
#include "tests/lib/cmocka.h"

static const char *const names[ENDS] = {"ada", "bob"};
const char *model_violation;
unsigned model_hellos_sent;

static void violate(const char *what)
{
    if (!model_violation)
        model_violation = what;
}

/* ---- The shipped session, to and from its bytes in the world ---- */

static struct tether__self self_of(const struct world *world, int e)
{
    return (struct tether__self){
        .group = "g",
        .name = names[e],
        .address = "",
        .id = (uint32_t)e,
        .incarnation = world->end[e].incarnation,
        .lease_ms = 1000,
        .forgotten_start = world->end[e].forgotten,
    };
}

static void load(const struct end *end,
                 const struct tether__self *self,
                 int e,
                 struct tether__pairing *session)
{
    tether__pairing_init(session, self, names[!e], !e, end->peer);
    session->my_fence = end->my_fence;
    session->peer_fence = end->peer_fence;
    session->version = end->epoch;
    session->met = end->met;
    session->peer_dial = end->peer_dial;
    session->may_be_known = end->may_be_known;
}

static void store(struct end *end, const struct tether__pairing *session)
{
    end->peer = (uint8_t)session->peer_incarnation;
    end->my_fence = (uint8_t)session->my_fence;
    end->peer_fence = (uint8_t)session->peer_fence;
    end->epoch = (uint8_t)session->version;
    end->met = session->met;
    end->peer_dial = (uint8_t)session->peer_dial;
    end->may_be_known = session->may_be_known;
}

static struct msg hello_of(const struct world *world, int e, int stream)
{
    struct tether__self self = self_of(world, e);
    struct tether__pairing session;
    load(&world->end[e], &self, e, &session);
    uint8_t dial = e == stream ? world->end[e].dials : 0;
    Tether__State state =
        tether__pairing_state(&session, dial, world->end[e].half[stream].received);
    return (struct msg){
        .is_hello = 1,
        .from = (uint8_t)state.from_incarnation,
        .from_fence = (uint8_t)state.from_fence,
        .to = (uint8_t)state.to_incarnation,
        .to_fence = (uint8_t)state.to_fence,
        .number = (uint8_t)state.received,
        .dial = (uint8_t)state.dial,
    };
}

static struct tether__state_result receive_state(struct tether__pairing *session,
                                                 int e,
                                                 const struct msg *msg)
{
    Tether__State state = TETHER__STATE__INIT;
    state.from_id = (uint32_t)!e;
    state.from_incarnation = msg->from;
    state.from_fence = msg->from_fence;
    state.to_incarnation = msg->to;
    state.to_fence = msg->to_fence;
    state.received = msg->number;
    state.dial = msg->dial;
    return tether__pairing_on_state(session, &state, NULL);
}

/* ---- What an agent does ---- */

static void post(struct world *world, int stream, int to, struct msg msg)
{
    if (!world->open[stream])
        return;
    if (world->queued[stream][to] == QUEUE) {
        violate("a queue grows without end");
        return;
    }
    world->queue[stream][to][world->queued[stream][to]++] = msg;
}

static void say_hello(struct world *world, int e)
{
    struct end *end = &world->end[e];
    for (int s = 0; s < STREAMS; s++) {
        struct half *half = &end->half[s];
        if (!world->open[s] || !half->knows || half->announced_epoch == end->epoch)
            continue;
        half->announced_epoch = end->epoch;
        post(world, s, !e, hello_of(world, e, s));
        model_hellos_sent++;
    }
}

static void give_frames(struct world *world, int e, int stream)
{
    struct end *end = &world->end[e];
    struct half *half = &end->half[stream];
    while (half->up && half->given < half->numbered) {
        half->given++;
        post(world, stream, !e,
             (struct msg){0, end->incarnation, end->my_fence, end->peer, end->peer_fence,
                          half->given, 0});
    }
}

static void reset_lanes(struct end *end)
{
    for (int s = 0; s < STREAMS; s++) {
        struct half *half = &end->half[s];
        half->up = half->numbered = half->given = half->acked = half->received = 0;
    }
}

static void cut(struct world *world, int stream)
{
    world->open[stream] = 0;
    for (int e = 0; e < ENDS; e++) {
        world->queued[stream][e] = 0;
        memset(world->queue[stream][e], 0, sizeof world->queue[stream][e]);
        struct half *half = &world->end[e].half[stream];
        half->knows = half->announced_epoch = half->up = 0;
    }
}

/* As tether__lane_connected(): false when the numbers can't be. */
static bool lane_connected(struct half *half, uint8_t received)
{
    if (received < half->acked || received > half->given)
        return false;
    half->acked = received;
    if (!half->up)
        half->given = received; /* the rest goes again */
    half->up = 1;
    return true;
}

/* Refuses a stream whose dial number is too low; the dialler, which is alive, hears of it. */
static void tell_dial(struct world *world, int e, int stream)
{
    struct end *dialler = &world->end[!e];
    Tether__State refusal = TETHER__STATE__INIT;
    refusal.refused = TETHER_ECANCELED;
    refusal.dial = world->end[e].peer_dial;
    dialler->dials = (uint8_t)tether__pairing_next_dial(dialler->dials, &refusal);
    cut(world, stream);
}

/* Returns whether the hello is accepted. A rejection is no violation if the hello is `late`. */
static bool on_hello(struct world *world, int e, int stream, const struct msg *msg, bool late)
{
    struct end *end = &world->end[e];
    struct tether__self self = self_of(world, e);
    struct tether__pairing session;
    load(end, &self, e, &session);
    uint64_t epoch = session.version;
    struct tether__state_result result = receive_state(&session, e, msg);
    if (result.verdict == TETHER__STATE_REJECT) {
        bool is_overtaken = e != stream && msg->from == end->peer && msg->dial < end->peer_dial;
        if (!late && (world->forged || world->any_forgot) && is_overtaken)
            tell_dial(world, e, stream);
        else if (!late)
            violate("a live peer was rejected");
        return false;
    }
    store(end, &session);
    if (tether__state_fences(result.verdict)) {
        reset_lanes(end);
    } else if (session.version != epoch) {
        for (int s = 0; s < STREAMS; s++)
            if (end->half[s].given || end->half[s].received || end->half[s].up)
                violate("the session changed under a lane that was used");
    }
    struct half *half = &end->half[stream];
    half->knows = 1;
    say_hello(world, e);
    if (!result.up) {
        half->up = 0;
    } else if (!lane_connected(half, (uint8_t)result.received)) {
        violate("a live peer has lost its memory");
    } else {
        give_frames(world, e, stream);
    }
    return true;
}

static void on_frame(struct world *world, int e, int stream, const struct msg *msg)
{
    struct end *end = &world->end[e];
    struct half *half = &end->half[stream];
    if (!half->up)
        return;
    if (msg->from != end->peer || msg->from_fence != end->peer_fence ||
        msg->to != end->incarnation || msg->to_fence != end->my_fence)
        violate("a frame of another session was taken");
    if (msg->number > half->received + 1)
        violate("a gap");
    if (msg->number == half->received + 1)
        half->received++;
}

static void arrive(struct world *world, int stream, int e)
{
    struct msg msg = world->queue[stream][e][0];
    uint8_t left = --world->queued[stream][e];
    memmove(&world->queue[stream][e][0], &world->queue[stream][e][1], left * sizeof msg);
    memset(&world->queue[stream][e][left], 0, sizeof msg);
    /* it cannot arrive late any more */
    if (msg.is_hello && e != stream)
        world->first[stream] = (struct msg){0};
    if (msg.is_hello)
        on_hello(world, e, stream, &msg, false);
    else
        on_frame(world, e, stream, &msg);
}

static void open_stream(struct world *world, int stream)
{
    world->open[stream] = 1;
    world->end[stream].dials++;
    struct half *half = &world->end[stream].half[stream];
    half->knows = 1;
    half->announced_epoch = world->end[stream].epoch;
    struct msg hello = hello_of(world, stream, stream);
    post(world, stream, !stream, hello);
    model_hellos_sent++;
    if (world->first[stream].is_hello && !world->late[stream].is_hello)
        world->late[stream] = world->first[stream];
    world->first[stream] = hello;
}

/* ---- Everything that can happen next ---- */

const char *const model_kinds[KINDS] = {"open",    "arrive", "frame", "fence", "cut",
                                        "restart", "late",   "forge", "forget"};

/* Whether the end has no session with the other: it has fenced it, or never met it. */
static bool is_alone(const struct end *end)
{
    for (int s = 0; s < STREAMS; s++)
        if (end->half[s].numbered || end->half[s].received)
            return false;
    return !end->met;
}

bool model_try_step(struct world *world, int step)
{
    int kind = step / 4, stream = step / 2 % 2, e = step % 2;
    struct end *end = &world->end[e];
    switch (kind) {
        case OPEN:
            if (e != stream || world->open[stream])
                return false;
            open_stream(world, stream);
            return true;
        case ARRIVE:
            if (!world->queued[stream][e])
                return false;
            arrive(world, stream, e);
            return true;
        case FRAME:
            if (!world->frames)
                return false;
            world->frames--;
            end->half[stream].numbered++;
            give_frames(world, e, stream);
            return true;
        case FENCE: {
            if (!world->fences || stream)
                return false;
            world->fences--;
            struct tether__self self = self_of(world, e);
            struct tether__pairing session;
            load(end, &self, e, &session);
            tether__pairing_fence(&session);
            store(end, &session);
            reset_lanes(end);
            say_hello(world, e);
            return true;
        }
        case CUT:
            if (!world->cuts || !world->open[stream] || e)
                return false;
            world->cuts--;
            cut(world, stream);
            return true;
        case RESTART: /* `stream`: whether the directory tells it who the other is */
            if (!world->restarts)
                return false;
            world->restarts--;
            cut(world, 0);
            cut(world, 1);
            *end = (struct end){.incarnation = (uint8_t)(end->incarnation + 1), .epoch = 1};
            end->peer = stream ? world->end[!e].incarnation : 0;
            return true;
        case LATE: {
            /* The stream that it comes on is dead. Where it is taken for good, it takes the place
             * of the one that is open. */
            if (!world->late_hellos || e == stream || !world->late[stream].is_hello)
                return false;
            world->late_hellos--;
            struct world before = *world;
            cut(world, stream);
            if (on_hello(world, e, stream, &before.late[stream], true))
                cut(world, stream);
            else
                *world = before;
            return true;
        }
        case FORGE: /* `e` takes it for the other's */
            if (!world->forgeries || stream || !end->peer)
                return false;
            world->forgeries--;
            world->forged = 1;
            end->peer_dial += 3;
            cut(world, !e); /* the forged stream takes the place of the real one, and ends */
            return true;
        case FORGET: /* `stream`: whether the directory tells it who the other is */
            if (!world->forgets || !is_alone(end))
                return false;
            world->forgets--;
            world->any_forgot = 1;
            cut(world, 0);
            cut(world, 1);
            *end = (struct end){
                .incarnation = end->incarnation,
                .epoch = 1,
                .forgotten = end->peer > end->forgotten ? end->peer : end->forgotten,
            };
            if (stream && world->end[!e].incarnation) {
                struct tether__self self = self_of(world, e);
                struct tether__pairing session;
                load(end, &self, e, &session);
                tether__pairing_restarted(&session, !e, world->end[!e].incarnation);
                store(end, &session);
            }
            return true;
    }
    return false;
}

void model_say_world(const struct world *world)
{
    for (int e = 0; e < ENDS; e++) {
        const struct end *end = &world->end[e];
        print_message("  %s: %d/%d, peer %d/%d, epoch %d%s", names[e], end->incarnation,
                      end->my_fence, end->peer, end->peer_fence, end->epoch,
                      end->met ? ", met" : "");
        for (int s = 0; s < STREAMS; s++)
            print_message("; stream %d%s said %d, numbered %d given %d received %d, %d queued", s,
                          end->half[s].up ? " up" : "", end->half[s].announced_epoch,
                          end->half[s].numbered, end->half[s].given, end->half[s].received,
                          world->queued[s][e]);
        print_message("\n");
    }
}

void model_settle(struct world world, unsigned seed)
{
    model_hellos_sent = 0;
    for (bool moved = true; moved && !model_violation;) {
        moved = false;
        for (int i = 0; i < 8; i++) {
            seed = seed * 1103515245 + 12345;
            int first = (int)(seed >> 16) % 8;
            for (int k = 0; k < 8 && !model_violation; k++)
                moved |= model_try_step(&world, (first + k) % 8);
        }
    }
    const struct end *a = &world.end[0], *b = &world.end[1];
    if (a->peer != b->incarnation || b->peer != a->incarnation || a->my_fence != b->peer_fence ||
        b->my_fence != a->peer_fence)
        violate("both are quiet and don't agree");
    for (int s = 0; s < STREAMS; s++) {
        if (!a->half[s].up || !b->half[s].up)
            violate("a stream does not come up");
        if (a->half[s].numbered != b->half[s].received ||
            b->half[s].numbered != a->half[s].received)
            violate("a frame does not arrive");
    }
}
