/* A proxy that loses things: it sits between a client and a server, and a test tells it when to cut
 * the connections, let nobody through, hold bytes back, pass them on one by one, or swallow them.
 * For faults that killing a process brings about only by luck.
 *
 *     struct tether_test_proxy *proxy = tether_test_proxy_start("127.0.0.1:2379");
 *     ... a client connects to tether_test_proxy_endpoint(proxy) ...
 *     tether_test_proxy_swallow_after(proxy, "needle");
 *     ... the request with "needle" in it reaches the server, the answer goes nowhere ...
 *     tether_test_proxy_cut(proxy, false);
 *     tether_test_proxy_free(proxy);
 *
 * Clients come by IPv4 on loopback; the server is there or on a unix socket. A thread of its own;
 * any thread may call.
 */
#ifndef TETHER_TESTS_LIB_TCP_PROXY_H
#define TETHER_TESTS_LIB_TCP_PROXY_H

#include <stdbool.h>

struct tether_test_proxy;

/* `target` is "address:port" or "unix:/path"; it need not listen yet. Fails the test when it can't.
 */
struct tether_test_proxy *tether_test_proxy_start(const char *target);
void tether_test_proxy_free(struct tether_test_proxy *proxy); /* NULL is fine */

/* "127.0.0.1:port" to connect to. */
const char *tether_test_proxy_endpoint(const struct tether_test_proxy *proxy);

/* Counts, from 0, how often `needle` is in what clients send (not across two reads). */
void tether_test_proxy_look_for(struct tether_test_proxy *proxy, const char *needle);
int tether_test_proxy_seen(struct tether_test_proxy *proxy);

/* As look_for; and once `needle` was seen, what the server sends is thrown away. */
void tether_test_proxy_swallow_after(struct tether_test_proxy *proxy, const char *needle);

/* Throws away what comes from these ends from now on (0: from neither). A connection that has lost
 * bytes is of no use any more: cut it. */
enum { TETHER_TEST_FROM_CLIENT = 1, TETHER_TEST_FROM_SERVER = 2 };
void tether_test_proxy_swallow(struct tether_test_proxy *proxy, int from);

/* Holds back everything that comes in from now on for `ms`, both ways; 0: no more. */
void tether_test_proxy_delay(struct tether_test_proxy *proxy, int ms);

/* Passes on one byte at a time, each in a packet of its own, both ways. */
void tether_test_proxy_dribble(struct tether_test_proxy *proxy, bool dribble);

/* The connections that there are carry nothing more, either way, but stay open, as when a router
 * has forgotten them. New ones work. */
void tether_test_proxy_strand(struct tether_test_proxy *proxy);

/* Closes all connections and swallows no more. With `refuse`, new ones are closed at once, until
 * the next cut without. */
void tether_test_proxy_cut(struct tether_test_proxy *proxy, bool refuse);

/* How many connections have been made through it. */
int tether_test_proxy_connections(struct tether_test_proxy *proxy);

#endif
