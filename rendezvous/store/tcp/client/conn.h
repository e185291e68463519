/* One connection of a client to a store server. It serves one call at a time, so the calling thread
 * itself writes the request and reads the reply, without a hand-over between threads.
 *
 * Happy path: put_...() build the request, send() writes it, get_...() read the reply. All of them
 * record the first error in the connection, so that a call checks once, at its end.
 *
 * Failure: TETHER_ETIMEOUT, TETHER_EUNAVAILABLE (closed or reset), TETHER_ENOMEM, TETHER_ETOOBIG
 * and TETHER_ECORRUPT (a length that no correct server sends). After any of them the connection is
 * out of step with its server and can only be closed.
 *
 * Threads: none; one call at a time owns the connection.
 */
#ifndef TETHER_RENDEZVOUS_STORE_TCP_CLIENT_CONN_H
#define TETHER_RENDEZVOUS_STORE_TCP_CLIENT_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/list.h"
#include "rendezvous/store/tcp/wire/wire.h"

#define TETHER__STORE_CONN_IN_SIZE (16 << 10)
#define TETHER__STORE_CONN_MAX_LOANS 4
#define TETHER__STORE_CONN_SLICE_MS 1000 /* the longest time that a system call blocks */

struct tether__store_conn {
    int fd;
    tether_store_dialect dialect;
    bool has_ping;     /* the server knows PING: dialect T, and V of PyTorch 2.5 and later */
    int64_t last_used; /* when it became idle, on a coarse clock */
    struct tether__list node;

    /* fields of the current call */
    int64_t deadline;
    tether_status status;
    bool replied;  /* at least one byte of the reply has arrived */
    bool has_time; /* at least one slice is left: the first wait need not read the clock */
    tether_error error;

    /* the request: `out`, and large values of the caller that are not copied into it */
    tether_buf out;
    struct {
        size_t at; /* position of this large value in `out` */
        tether_bytes bytes;
    } loans[TETHER__STORE_CONN_MAX_LOANS];
    int n_loans;

    /* the reply: bytes that have been read but not decoded */
    size_t in_at, in_len;
    char in[TETHER__STORE_CONN_IN_SIZE];
};

/* TAKES `fd`, a connected blocking socket; closes it on NULL (out of memory). */
struct tether__store_conn *tether__store_conn_new(int fd, tether_store_dialect dialect);
struct tether__store_conn *tether__store_conn_close(
    struct tether__store_conn *conn); /* closes and frees the connection; NULL is fine */

/* Starts a call with this deadline on the connection. */
void tether__store_conn_begin(struct tether__store_conn *conn, int64_t deadline);

/* ---- Request -------------------------------------------------------------------------------- */

void tether__store_conn_put_op(struct tether__store_conn *conn, enum tether__store_wire_op op);
void tether__store_conn_put_u32(struct tether__store_conn *conn, uint32_t value);
void tether__store_conn_put_u64(struct tether__store_conn *conn, uint64_t value);
void tether__store_conn_put_key(struct tether__store_conn *conn,
                                const char *prefix,
                                const char *key);
void tether__store_conn_put_bytes(struct tether__store_conn *conn,
                                  /* `bytes` is LENT until the request was sent */
                                  tether_bytes bytes);

/* Writes the request, and keeps it for a retry on another connection. */
void tether__store_conn_send(struct tether__store_conn *conn);

/* Moves the request that `from` holds to `conn`, which has none. */
void tether__store_conn_move_request(struct tether__store_conn *conn,
                                     struct tether__store_conn *from);

/* ---- Reply ---------------------------------------------------------------------------------- */

/* Read a number of the reply. They return zero, with an error in `status`, when the bytes do not
 * arrive. */
uint8_t tether__store_conn_get_u8(struct tether__store_conn *conn);
uint32_t tether__store_conn_get_u32(struct tether__store_conn *conn);
uint64_t tether__store_conn_get_u64(struct tether__store_conn *conn);

/* Reads a string of at most `limit` bytes directly into `ret_bytes`, whose content it replaces. */
void tether__store_conn_get_bytes(struct tether__store_conn *conn,
                                  size_t limit,
                                  tether_buf *ret_bytes);

/* Waits for the reply to begin. False when the deadline passes first; that sets no error. */
bool tether__store_conn_wait_readable(struct tether__store_conn *conn);

#endif
