/* The state of the connection that we dial to a peer. No I/O, lock, thread or clock of its own:
 * reach.c tells it each event and carries out the steps, stream.c tells it of connections.
 *
 *     IDLE          nothing to do until the peer is wanted
 *     RESOLVING     the directory is asked where the peer is, and nothing is dialled before
 *     BACKING_OFF   the next step waits for `due`
 *     CONNECTING    there is a connection, or the transport makes it; its handshake is not done
 *     CONNECTED     both ends agree on the session
 *     STOPPED       we have said goodbye: nothing is dialled any more
 *
 * dialer.c has the table of transitions. A look-up may also be under way in the other states
 * (`is_asking`): a known address is dialled without the store, and the directory is asked beside
 * that whether the peer has moved. While there is a connection, `due` is a look-up only.
 *
 * The route, local or network, is the same for all connections to one start of the peer: local, if
 * it is on this host. It changes once at most, to network, when a connection ends before the first
 * handshake. A new start, and a session that has ended without a connection, begin anew.
 */
#ifndef TETHER_RPC_PEER_DIALER_H
#define TETHER_RPC_PEER_DIALER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "rpc/group/directory.h"

enum tether__dialer_state {
    TETHER__DIALER_IDLE,
    TETHER__DIALER_RESOLVING,
    TETHER__DIALER_BACKING_OFF,
    TETHER__DIALER_CONNECTING,
    TETHER__DIALER_CONNECTED,
    TETHER__DIALER_STOPPED,
    TETHER__N_DIALER_STATES,
};

enum tether__dialer_route { TETHER__NO_ROUTE, TETHER__LOCAL_ROUTE, TETHER__NETWORK_ROUTE };

/* Part of a peer, and guarded by the peer's lock. */
struct tether__dialer {
    enum tether__dialer_state state;
    bool is_asking;      /* a look-up in the directory is under way */
    bool record_is_old;  /* ask the directory for a newer record at the next dial */
    bool route_is_fixed; /* a handshake has succeeded on `route` */
    enum tether__dialer_route route;
    int backoff_ms; /* the pause before the next dial; 0: dial at once */
    /* when tether__dialer_on_due() must be called; TETHER__NEVER: no timer */
    int64_t due;
    uint64_t dialled_start;              /* start in the record that was dialled last; 0: none */
    struct tether__worker_record record; /* where the peer is; record.name "" until looked up */
    char last_error[192];                /* why the peer is not connected; "": not known */
    /* why one worker refuses the other; code TETHER_OK: no refusal */
    tether_error refusal;
};

void tether__dialer_init(struct tether__dialer *dialer);

/* Whether there is a connection, whether or not its handshake is done. */
static inline bool tether__dialer_has_conn(const struct tether__dialer *dialer)
{
    return dialer->state == TETHER__DIALER_CONNECTING || dialer->state == TETHER__DIALER_CONNECTED;
}

/* Whether there is no connection, no dial that waits and no look-up. */
static inline bool tether__dialer_is_at_rest(const struct tether__dialer *dialer)
{
    return dialer->state == TETHER__DIALER_IDLE ||
           (dialer->state == TETHER__DIALER_STOPPED && !dialer->is_asking);
}

/* Whether the peer's record is known and is that of `start` or a later one. */
bool tether__dialer_knows(const struct tether__dialer *dialer, uint64_t start);

/* Whether back_off() would have an effect. `needs_no_look_up`: the peer's address is known. */
bool tether__dialer_may_begin(const struct tether__dialer *dialer, bool needs_no_look_up);

/* ---- Events ---- */

/* Schedules the next dial, because the peer is needed: a pause after `from`. Each pause is longer
 * than the one before, up to a quarter of a lease. Returns when the dial is due. */
int64_t tether__dialer_back_off(struct tether__dialer *dialer,
                                int64_t from,
                                int64_t now,
                                uint32_t lease_ms);

/* Schedules a look-up in the directory, even if there is a connection. False: a look-up is under
 * way already, or another step is scheduled. */
bool tether__dialer_ask_at(struct tether__dialer *dialer, int64_t due);

/* Clears the timer, because `due` has come. Returns whether to ask the directory; false unless
 * `can_ask`. */
bool tether__dialer_on_due(struct tether__dialer *dialer, bool has_address, bool can_ask);

/* asked(): a look-up has begun. answered(): the look-up has ended. */
void tether__dialer_asked(struct tether__dialer *dialer);
void tether__dialer_answered(struct tether__dialer *dialer);

/* Replaces the known record by one that the directory has returned. */
void tether__dialer_learn(struct tether__dialer *dialer,
                          const struct tether__worker_record *record);

/* Notes that the address in the record is being dialled. Returns the route: NETWORK or, if the peer
 * `is_here`, on this host, usually LOCAL. */
enum tether__dialer_route tether__dialer_dial(struct tether__dialer *dialer, bool is_here);

/* up(): the handshake has succeeded. down(): the two ends must agree on the session again.
 * closed(): this end has closed the connection, or could not make it. broke(): the other end or the
 * network has closed it. */
void tether__dialer_up(struct tether__dialer *dialer);
void tether__dialer_down(struct tether__dialer *dialer);
void tether__dialer_closed(struct tether__dialer *dialer);
void tether__dialer_broke(struct tether__dialer *dialer);

/* Forgets earlier errors, because a connection with the peer is up. It may have been dialled by
 * either end. */
void tether__dialer_met(struct tether__dialer *dialer);

/* Cancels the scheduled step, because the session has ended. */
void tether__dialer_session_ended(struct tether__dialer *dialer);

/* Cancels the scheduled step and the pause, so that the next back_off() dials at once. */
void tether__dialer_restart(struct tether__dialer *dialer);

/* Delays the scheduled step, if there is one, by `pause_ns`. */
void tether__dialer_delay(struct tether__dialer *dialer, int64_t pause_ns);

/* Notes why the peer is not connected. doubt() also notes that the record may be out of date. */
void tether__dialer_explain(struct tether__dialer *dialer, const char *why);
void tether__dialer_doubt(struct tether__dialer *dialer, const char *why);

void tether__dialer_stop(struct tether__dialer *dialer);

#endif
