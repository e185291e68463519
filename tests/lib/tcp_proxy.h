/* A proxy between a client and a server, for faults that killing a process causes only by chance. A
 * test makes it cut or refuse connections, delay bytes, pass them on one by one, or drop them.
 *
 *     struct tether_test_proxy *proxy = tether_test_proxy_start("127.0.0.1:2379");
 *     ... a client connects to tether_test_proxy_endpoint(proxy) ...
 *     tether_test_proxy_swallow_after(proxy, "needle");
 *     ... the request with "needle" reaches the server, the proxy drops the reply ...
 *     tether_test_proxy_cut(proxy, false);
 *     tether_test_proxy_free(proxy);
 *
 * Clients connect by IPv4 on loopback; the server is on loopback or on a unix socket. The proxy has
 * a thread of its own; any thread may call.
 */
#ifndef TETHER_TESTS_LIB_TCP_PROXY_H
#define TETHER_TESTS_LIB_TCP_PROXY_H

#include <stdbool.h>

struct tether_test_proxy;

/* `target` is "address:port" or "unix:/path"; it need not listen yet. Fails the test when it can't.
 */
struct tether_test_proxy *tether_test_proxy_start(const char *target);
void tether_test_proxy_free(struct tether_test_proxy *proxy); /* NULL is fine */

/* Returns "127.0.0.1:port" to connect to. */
const char *tether_test_proxy_endpoint(const struct tether_test_proxy *proxy);

/* Starts counting how often the clients' bytes contain `needle` (not across two reads). */
void tether_test_proxy_look_for(struct tether_test_proxy *proxy, const char *needle);
int tether_test_proxy_seen(struct tether_test_proxy *proxy);

/* Like look_for(), and drops the bytes of the server once `needle` was seen. */
void tether_test_proxy_swallow_after(struct tether_test_proxy *proxy, const char *needle);

/* Drops the bytes of these ends from now on (0: of neither end). Cut a connection that has lost
 * bytes: it cannot be used any more. */
enum { TETHER_TEST_FROM_CLIENT = 1, TETHER_TEST_FROM_SERVER = 2 };
void tether_test_proxy_swallow(struct tether_test_proxy *proxy, int from);

/* Delays all bytes from now on by `ms`, in both directions; 0: no delay. */
void tether_test_proxy_delay(struct tether_test_proxy *proxy, int ms);

/* Passes on one byte at a time, each in a packet of its own, in both directions. */
void tether_test_proxy_dribble(struct tether_test_proxy *proxy, bool dribble);

/* Makes the present connections drop all bytes but stay open, as when a router has lost their
 * state. New connections work. */
void tether_test_proxy_strand(struct tether_test_proxy *proxy);

/* Closes all connections and ends the dropping of bytes. With `refuse`, new connections are closed
 * at once, until the next cut without `refuse`. */
void tether_test_proxy_cut(struct tether_test_proxy *proxy, bool refuse);

/* Returns how many connections the proxy has accepted. */
int tether_test_proxy_connections(struct tether_test_proxy *proxy);

#endif
