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

/* Under the lock of the peer that it is part of. */
struct tether__dialer {
    enum tether__dialer_state state;
    bool is_asking;      /* a look-up is under way */
    bool record_is_old;  /* the directory is asked beside the next dial */
    bool route_is_fixed; /* a handshake was done on it */
    enum tether__dialer_route route;
    int backoff_ms;                      /* the next pause; 0: none */
    int64_t due;                         /* of on_due(); TETHER__NEVER: no timer */
    uint64_t dialled_start;              /* of the record that was dialled last; 0: none was */
    struct tether__worker_record record; /* where the peer is; record.name "" until looked up */
    char last_error[192];                /* why it is not connected; "": not known */
    tether_error refusal;                /* why one of us does not want the other; or code 0 */
};

void tether__dialer_init(struct tether__dialer *dialer);

/* Whether there is a connection, up or not. */
static inline bool tether__dialer_has_conn(const struct tether__dialer *dialer)
{
    return dialer->state == TETHER__DIALER_CONNECTING || dialer->state == TETHER__DIALER_CONNECTED;
}

/* Whether nothing is under way, and no connection is there. */
static inline bool tether__dialer_is_at_rest(const struct tether__dialer *dialer)
{
    return dialer->state == TETHER__DIALER_IDLE ||
           (dialer->state == TETHER__DIALER_STOPPED && !dialer->is_asking);
}

/* Whether the peer has a record, of this start or a later one. */
bool tether__dialer_knows(const struct tether__dialer *dialer, uint64_t start);

/* Whether back_off() does anything. `needs_no_look_up`: it is known where the peer is. */
bool tether__dialer_may_begin(const struct tether__dialer *dialer, bool needs_no_look_up);

/* ---- Events ---- */

/* The peer is wanted: it is dialled a pause after `from`. Pauses grow from one to the next, up to a
 * quarter of a lease. Says when. */
int64_t tether__dialer_back_off(struct tether__dialer *dialer,
                                int64_t from,
                                int64_t now,
                                uint32_t lease_ms);

/* The directory is to be asked soon, even if there is a connection. False: it is asked already, or
 * the next step is due. */
bool tether__dialer_ask_at(struct tether__dialer *dialer, int64_t due);

/* `due` has come. Returns whether to ask the directory, which can be asked only if `can_ask`. */
bool tether__dialer_on_due(struct tether__dialer *dialer, bool has_address, bool can_ask);

/* A look-up has begun; it has ended. */
void tether__dialer_asked(struct tether__dialer *dialer);
void tether__dialer_answered(struct tether__dialer *dialer);

/* The directory has this record, which replaces the one that was known. */
void tether__dialer_learn(struct tether__dialer *dialer,
                          const struct tether__worker_record *record);

/* A connection is made to the address in the record. Returns the route: NETWORK or, if the record
 * `is_here`, LOCAL. */
enum tether__dialer_route tether__dialer_dial(struct tether__dialer *dialer, bool is_here);

/* The handshake is done; it is to be done again; this end has closed the connection, or could not
 * make it; the other end or the network has. */
void tether__dialer_up(struct tether__dialer *dialer);
void tether__dialer_down(struct tether__dialer *dialer);
void tether__dialer_closed(struct tether__dialer *dialer);
void tether__dialer_broke(struct tether__dialer *dialer);

/* A connection with the peer is up, that we dialled or that the peer dialled: there was no error.
 */
void tether__dialer_met(struct tether__dialer *dialer);

/* The session has ended, and nothing is to be dialled for it. */
void tether__dialer_session_ended(struct tether__dialer *dialer);

/* The next step is not to wait: back_off() may be called, and begins without a pause. */
void tether__dialer_restart(struct tether__dialer *dialer);

/* The next step waits for so much longer, if one is due. */
void tether__dialer_delay(struct tether__dialer *dialer, int64_t pause_ns);

/* Notes why the peer is not connected. doubt(): the record may be the reason. */
void tether__dialer_explain(struct tether__dialer *dialer, const char *why);
void tether__dialer_doubt(struct tether__dialer *dialer, const char *why);

void tether__dialer_stop(struct tether__dialer *dialer);

#endif
