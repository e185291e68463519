/* The handshake of a connection, which finds out the dialect of the server. */
#include "rendezvous/store/tcp/client/internal.h"

#define NO_STORE "the server there is not a store: check host and port"

static void put_hello(struct tether__store_conn *conn, uint32_t nonce)
{
    tether__store_conn_put_op(conn, TETHER__STORE_OP_VALIDATE);
    tether__store_conn_put_u32(conn, TETHER__STORE_WIRE_MAGIC);
    tether__store_conn_put_op(conn, TETHER__STORE_OP_PING);
    tether__store_conn_put_u32(conn, nonce);
    tether__store_conn_send(conn);
}

static size_t least(uint64_t theirs, size_t ours)
{
    return theirs < ours ? (size_t)theirs : ours;
}

/* Lowers the limits to those of our server. */
static void read_limits(struct tether__store_conn *conn, struct tether_store_limits *limits)
{
    limits->max_key = least(tether__store_conn_get_u64(conn), limits->max_key);
    limits->max_value = least(tether__store_conn_get_u64(conn), limits->max_value);
    limits->max_keys = least(tether__store_conn_get_u64(conn), limits->max_keys);
    limits->max_message = least(tether__store_conn_get_u64(conn), limits->max_message);
}

static void torch_limits(struct tether_store_limits *limits)
{
    limits->max_key = least(TETHER__STORE_WIRE_TORCH_MAX_KEY - 1, limits->max_key);
    limits->max_value = least(TETHER__STORE_WIRE_TORCH_MAX_VALUE, limits->max_value);
}

/* VALIDATE and PING. PyTorch 2.5 and later echoes the nonce; our server answers WELCOME. */
static void handshake_with_ping(struct tether__store_conn *conn,
                                tether_store_dialect asked,
                                struct tether_store_limits *limits)
{
    bool offer = asked != TETHER_STORE_DIALECT_V;
    uint32_t nonce = offer ? TETHER__STORE_WIRE_HELLO : TETHER__STORE_WIRE_MAGIC;
    put_hello(conn, nonce);
    uint32_t echo = tether__store_conn_get_u32(conn);
    if (conn->status != TETHER_OK)
        return;
    conn->has_ping = true;
    if (offer && echo == TETHER__STORE_WIRE_WELCOME) {
        conn->dialect = TETHER_STORE_DIALECT_TETHER;
        read_limits(conn, limits);
    } else if (echo != nonce) {
        conn->status = tether_error_set(&conn->error, TETHER_ECORRUPT, NO_STORE);
    } else if (asked == TETHER_STORE_DIALECT_TETHER) {
        conn->status = tether_error_set(&conn->error, TETHER_ENOTSUP,
                                        "the server is PyTorch's store, not Tether's");
    } else {
        torch_limits(limits);
    }
}

/* VALIDATE and CHECK, for PyTorch 2.2 to 2.4, which close the connection on PING. */
static void handshake_without_ping(struct tether__store_conn *conn,
                                   struct tether_store_limits *limits)
{
    tether__store_conn_put_op(conn, TETHER__STORE_OP_VALIDATE);
    tether__store_conn_put_u32(conn, TETHER__STORE_WIRE_MAGIC);
    tether__store_conn_put_op(conn, TETHER__STORE_OP_CHECK);
    tether__store_conn_put_u64(conn, 1);
    tether__store_conn_put_key(conn, "", TETHER__STORE_WIRE_JOINED_KEY);
    tether__store_conn_send(conn);
    if (tether__store_conn_get_u8(conn) > TETHER__STORE_WIRE_NOT_READY)
        conn->status = tether_error_set(&conn->error, TETHER_ECORRUPT, NO_STORE);
    torch_limits(limits);
}

tether_status tether__store_tcp_handshake(int fd,
                                          tether_store_dialect dialect,
                                          bool without_ping,
                                          int64_t deadline,
                                          struct tether_store_limits *limits,
                                          struct tether__store_conn **ret_conn,
                                          tether_error *reterr)
{
    bool is_legacy = dialect == TETHER_STORE_DIALECT_L0 || dialect == TETHER_STORE_DIALECT_L1;
    struct tether__store_conn *conn =
        tether__store_conn_new(fd, is_legacy ? dialect : TETHER_STORE_DIALECT_V);
    if (!conn)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for a connection");
    tether__store_conn_begin(conn, deadline);
    if (without_ping)
        handshake_without_ping(conn, limits);
    else if (!is_legacy) /* these dialects have no handshake */
        handshake_with_ping(conn, dialect, limits);
    if (conn->status != TETHER_OK) {
        tether_status st = conn->status;
        if (reterr)
            *reterr = conn->error;
        tether__store_conn_close(conn);
        return st;
    }
    *ret_conn = conn;
    return TETHER_OK;
}
