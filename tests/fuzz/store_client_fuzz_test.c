/* Arbitrary answers of a server: the TCP store's client ends each call with a value or an error,
 * keeps to its limits, and leaks nothing.
 *
 * The first byte of an input is the dialect to ask for, the rest is all that the server ever says:
 * a length byte and so many bytes, again and again. The calls go over a real socket, on which all
 * of it is waiting, with the end behind it; a reply that was sent in one piece is read in one
 * piece, so that the client does not have the answer before it has asked.
 */
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "rendezvous/store/tcp/client/internal.h"
#include "tests/fuzz/fuzz.h"

#define MAX_REPLIES 60 /* as many as a socket buffers while the peer does not read */
#define MAX_VALUE 4096

/* Two ends of a socket. The peer has already sent everything that it will send. */
static int answered_socket(const uint8_t *data, size_t size, int *ret_peer_fd)
{
    int fds[2];
    fuzz_check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    for (int n = 0; size > 0 && n < MAX_REPLIES; n++) {
        size_t len = data[0] < size - 1 ? data[0] : size - 1;
        fuzz_check(len == 0 || send(fds[1], data + 1, len, MSG_NOSIGNAL) == (ssize_t)len);
        data += 1 + len;
        size -= 1 + len;
    }
    shutdown(fds[1], SHUT_WR);
    *ret_peer_fd = fds[1];
    return fds[0];
}

/* A store with `conn` as its only connection, whose server is not there for another. */
static tether_store *store_of(struct tether__store_conn *conn,
                              const struct tether_store_limits *limits)
{
    struct tether__store_tcp *impl = tether__calloc(1, sizeof *impl);
    struct sockaddr_un nowhere = {.sun_family = AF_UNIX, .sun_path = "no.such.socket"};
    fuzz_check(impl);
    impl->host = tether__strdup("fuzz");
    impl->dialect = conn->dialect;
    impl->has_ping = conn->has_ping;
    impl->limits = *limits;
    memcpy(&impl->addr.sockaddr, &nowhere, sizeof nowhere);
    impl->addr.len = sizeof nowhere;
    tether__list_init(&impl->idle);
    pthread_mutex_init(&impl->mu, NULL);
    tether__store_tcp_give(impl, conn);
    tether_store *store = NULL;
    fuzz_check(tether__store_new(&tether__store_tcp_kind, impl, "fuzzed store", &store, NULL) ==
               TETHER_OK);
    return store;
}

static void use(tether_store *store)
{
    enum { MS = 1000 }; /* never reached: the end of the connection comes first */
    const char *keys[] = {"a", "b", "c"};
    tether_bytes x = tether_bytes_str("x"), values[] = {x, x, x};
    tether_buf got[3] = {{0}};
    tether_store_keys listed = {NULL, 0};
    int64_t number;
    bool flag;
    tether_store_get(store, "k", MS, &got[0], NULL);
    fuzz_check(got[0].len <= MAX_VALUE);
    tether_store_set(store, "k", x, MS, NULL);
    tether_store_add(store, "k", 1, MS, &number, NULL);
    tether_store_compare_set(store, "k", x, x, MS, &flag, &got[0], NULL);
    tether_store_check(store, keys, 3, MS, &flag, NULL);
    tether_store_wait(store, keys, 3, MS, NULL);
    tether_store_try_get(store, "k", MS, &got[0], NULL);
    tether_store_get(store, "k", 0, &got[0], NULL);
    tether_store_multi_get(store, keys, 3, MS, got, NULL);
    for (int i = 0; i < 3; i++)
        fuzz_check(got[i].len <= MAX_VALUE);
    tether_store_multi_set(store, keys, values, 3, MS, NULL);
    tether_store_append(store, "k", x, MS, NULL);
    tether_store_delete(store, "k", MS, &flag, NULL);
    tether_store_num_keys(store, MS, &number, NULL);
    tether_store_list_keys(store, MS, &listed, NULL);
    tether_store_queue_push(store, "q", x, MS, NULL);
    tether_store_queue_pop(store, "q", MS, &got[0], NULL);
    tether_store_queue_pop(store, "q", 0, &got[0], NULL);
    tether_store_queue_len(store, "q", MS, &number, NULL);
    tether_store_barrier(store, "b", 2, 0, NULL);
    tether_store_keys_fini(&listed);
    for (int i = 0; i < 3; i++)
        tether_buf_fini(&got[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    int peer_fd;
    int fd = answered_socket(data + 1, size - 1, &peer_fd);
    tether_store_dialect dialect = data[0] % (TETHER_STORE_DIALECT_L1 + 1);
    bool without_ping = dialect == TETHER_STORE_DIALECT_V && data[0] & 0x80;
    struct tether_store_limits limits = tether__store_wire_limits(
        (struct tether_store_limits){.max_value = MAX_VALUE, .max_message = MAX_VALUE});
    struct tether__store_conn *conn;
    if (tether__store_tcp_handshake(fd, dialect, without_ping, TETHER__NEVER, &limits, &conn,
                                    NULL) == TETHER_OK) {
        tether_store *store = store_of(conn, &limits);
        use(store);
        tether_store_release(store);
    }
    close(peer_fd);
    return 0;
}
