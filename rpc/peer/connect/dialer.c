/* The state of the connection that we dial to a peer. See dialer.h. */
#include "rpc/peer/connect/dialer.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/text.h"

#define BACKOFF_FIRST_MS 20
#define BACKOFF_MAX_MS 2000

enum event { TIMER_SET, TIMER_CLEARED, ASKED, ANSWERED, DIALLED, UP, DOWN, CLOSED, STOP, N_EVENTS };

/* Entries of the table. SAME: the event does not change the state. REST: BACKING_OFF if a timer is
 * set, else RESOLVING if a look-up is under way, else IDLE. */
enum { SAME = TETHER__N_DIALER_STATES, REST };

static const unsigned char transitions[N_EVENTS][TETHER__N_DIALER_STATES] = {
    /* clang-format off */
    /*                  IDLE    RESOLVING  BACKING_OFF  CONNECTING  CONNECTED  STOPPED */
    [TIMER_SET]     = { REST,   REST,      SAME,        SAME,       SAME,      SAME },
    [TIMER_CLEARED] = { SAME,   SAME,      REST,        SAME,       SAME,      SAME },
    [ASKED]         = { REST,   SAME,      SAME,        SAME,       SAME,      SAME },
    [ANSWERED]      = { SAME,   REST,      SAME,        SAME,       SAME,      SAME },
    [DIALLED]       = { TETHER__DIALER_CONNECTING, TETHER__DIALER_CONNECTING,
                                           TETHER__DIALER_CONNECTING,
                                                        SAME,       SAME,      SAME },
    [UP]            = { SAME,   SAME,      SAME,        TETHER__DIALER_CONNECTED,
                                                                    SAME,      SAME },
    [DOWN]          = { SAME,   SAME,      SAME,        SAME,       TETHER__DIALER_CONNECTING,
                                                                               SAME },
    [CLOSED]        = { SAME,   SAME,      SAME,        REST,       REST,      SAME },
    [STOP]          = { TETHER__DIALER_STOPPED, TETHER__DIALER_STOPPED, TETHER__DIALER_STOPPED,
                        TETHER__DIALER_STOPPED, TETHER__DIALER_STOPPED, SAME },
    /* clang-format on */
};

static enum tether__dialer_state resting_state(const struct tether__dialer *dialer)
{
    return dialer->due != TETHER__NEVER ? TETHER__DIALER_BACKING_OFF
           : dialer->is_asking          ? TETHER__DIALER_RESOLVING
                                        : TETHER__DIALER_IDLE;
}

static void step(struct tether__dialer *dialer, enum event event)
{
    unsigned char next = transitions[event][dialer->state];
    if (next != SAME)
        dialer->state = next == REST ? resting_state(dialer) : (enum tether__dialer_state)next;
}

static void set_timer(struct tether__dialer *dialer, int64_t due)
{
    dialer->due = due;
    step(dialer, due == TETHER__NEVER ? TIMER_CLEARED : TIMER_SET);
}

void tether__dialer_init(struct tether__dialer *dialer)
{
    *dialer = (struct tether__dialer){.due = TETHER__NEVER};
}

bool tether__dialer_knows(const struct tether__dialer *dialer, uint64_t start)
{
    return dialer->record.name[0] && dialer->record.incarnation >= start;
}

bool tether__dialer_may_begin(const struct tether__dialer *dialer, bool needs_no_look_up)
{
    return dialer->state == TETHER__DIALER_IDLE ||
           (dialer->state == TETHER__DIALER_RESOLVING && needs_no_look_up);
}

/* Returns the next pause and doubles the one after it, up to a quarter of a lease: a network that
 * works again must be noticed well before the lease ends. */
static int next_pause_ms(struct tether__dialer *dialer, int64_t now, uint32_t lease_ms)
{
    int pause = dialer->backoff_ms, longest = (int)lease_ms / 4;
    longest = longest < BACKOFF_FIRST_MS ? BACKOFF_FIRST_MS
              : longest > BACKOFF_MAX_MS ? BACKOFF_MAX_MS
                                         : longest;
    dialer->backoff_ms = pause == 0 ? BACKOFF_FIRST_MS : pause * 2 > longest ? longest : pause * 2;
    /* Shorten the pause by up to a quarter, so that many workers do not redial at the same moment.
     */
    return pause - (int)((now / 1000) % (pause / 4 + 1));
}

int64_t tether__dialer_back_off(struct tether__dialer *dialer,
                                int64_t from,
                                int64_t now,
                                uint32_t lease_ms)
{
    set_timer(dialer, from + next_pause_ms(dialer, now, lease_ms) * TETHER__NS_PER_MS);
    return dialer->due;
}

bool tether__dialer_ask_at(struct tether__dialer *dialer, int64_t due)
{
    if (dialer->is_asking || dialer->due != TETHER__NEVER ||
        dialer->state == TETHER__DIALER_STOPPED)
        return false;
    dialer->record_is_old = true;
    set_timer(dialer, due);
    return true;
}

bool tether__dialer_on_due(struct tether__dialer *dialer, bool has_address, bool can_ask)
{
    set_timer(dialer, TETHER__NEVER);
    return can_ask && (!has_address || dialer->record_is_old);
}

void tether__dialer_asked(struct tether__dialer *dialer)
{
    dialer->is_asking = true;
    step(dialer, ASKED);
}

void tether__dialer_answered(struct tether__dialer *dialer)
{
    dialer->is_asking = false;
    step(dialer, ANSWERED);
}

static void reset_route(struct tether__dialer *dialer)
{
    dialer->route = TETHER__NO_ROUTE;
    dialer->route_is_fixed = false;
}

void tether__dialer_learn(struct tether__dialer *dialer, const struct tether__worker_record *record)
{
    if (record->incarnation != dialer->record.incarnation)
        reset_route(dialer); /* the route was chosen for another start */
    dialer->record = *record;
    dialer->record_is_old = false;
}

enum tether__dialer_route tether__dialer_dial(struct tether__dialer *dialer, bool is_here)
{
    if (dialer->route == TETHER__NO_ROUTE || !is_here)
        dialer->route = is_here ? TETHER__LOCAL_ROUTE : TETHER__NETWORK_ROUTE;
    dialer->dialled_start = dialer->record.incarnation;
    dialer->due = TETHER__NEVER;
    step(dialer, DIALLED);
    return dialer->route;
}

void tether__dialer_up(struct tether__dialer *dialer)
{
    dialer->route_is_fixed = true;
    step(dialer, UP);
}

void tether__dialer_down(struct tether__dialer *dialer)
{
    step(dialer, DOWN);
}

void tether__dialer_closed(struct tether__dialer *dialer)
{
    if (dialer->state == TETHER__DIALER_CONNECTING && !dialer->route_is_fixed)
        dialer->route = TETHER__NETWORK_ROUTE;
    step(dialer, CLOSED);
}

void tether__dialer_broke(struct tether__dialer *dialer)
{
    if (dialer->state == TETHER__DIALER_CONNECTING)
        /* another process may listen at the address now, so ask the directory */
        dialer->record_is_old = true;
    tether__dialer_closed(dialer);
}

void tether__dialer_met(struct tether__dialer *dialer)
{
    dialer->backoff_ms = 0;
    dialer->last_error[0] = '\0';
    dialer->refusal.code = TETHER_OK;
}

void tether__dialer_session_ended(struct tether__dialer *dialer)
{
    set_timer(dialer, TETHER__NEVER);
    /* keep the route: the connection goes on in the next session */
    if (tether__dialer_has_conn(dialer))
        dialer->route_is_fixed = false;
    else
        reset_route(dialer);
}

void tether__dialer_restart(struct tether__dialer *dialer)
{
    set_timer(dialer, TETHER__NEVER);
    dialer->backoff_ms = 0;
}

void tether__dialer_delay(struct tether__dialer *dialer, int64_t pause_ns)
{
    if (dialer->due != TETHER__NEVER)
        dialer->due += pause_ns;
}

void tether__dialer_explain(struct tether__dialer *dialer, const char *why)
{
    tether__text_fit(dialer->last_error, sizeof dialer->last_error, tether_bytes_str(why));
}

void tether__dialer_doubt(struct tether__dialer *dialer, const char *why)
{
    tether__dialer_explain(dialer, why);
    dialer->record_is_old = true;
}

void tether__dialer_stop(struct tether__dialer *dialer)
{
    set_timer(dialer, TETHER__NEVER);
    step(dialer, STOP);
}
