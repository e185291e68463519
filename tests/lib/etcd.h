/* A real etcd for tests: Debian's etcd-server, one member or several, on a loopback address and
 * ports of its own, with its data in TEST_TMPDIR. It dies with the test (child.h says how).
 *
 *     struct tether_test_etcd *etcd = tether_test_etcd_start(NULL);
 *     ... tether_test_etcd_endpoint(etcd) ...
 *     tether_test_etcd_kill(etcd);      // kill -9
 *     tether_test_etcd_restart(etcd);   // same address, same data
 *     tether_test_etcd_free(etcd);
 *
 * Without the etcd binary the test fails and says so. Use it on the thread that started it.
 */
#ifndef TETHER_TESTS_LIB_ETCD_H
#define TETHER_TESTS_LIB_ETCD_H

#include <stdbool.h>
#include <sys/types.h>

struct tether_test_etcd;

/* Options. With TLS, certificates of an authority, the server and a client are made with openssl,
 * and clients must have a certificate of that authority. */
struct tether_test_etcd_opts {
    bool tls;
    int members; /* number of members; 0: one; at most 3 */
};

/* Starts etcd and returns when it listens. `opts` may be NULL. Fails the test on error. */
struct tether_test_etcd *tether_test_etcd_start(const struct tether_test_etcd_opts *opts);
void tether_test_etcd_free(struct tether_test_etcd *etcd); /* NULL is fine */

/* Kill and restart the first member. */
void tether_test_etcd_kill(struct tether_test_etcd *etcd);
void tether_test_etcd_restart(struct tether_test_etcd *etcd);
pid_t tether_test_etcd_pid(const struct tether_test_etcd *etcd);

/* Kill and restart any member, counted from 0. */
void tether_test_etcd_kill_member(struct tether_test_etcd *etcd, int member);
void tether_test_etcd_restart_member(struct tether_test_etcd *etcd, int member);

/* Returns "127.17.4.90:23456"; several members are separated by commas. */
const char *tether_test_etcd_endpoint(const struct tether_test_etcd *etcd);

/* Returns the path of a certificate file: "ca.crt", "client.crt", "client.key", or "other-ca.crt",
 * an authority that has signed none of them. Valid as long as `etcd`. */
const char *tether_test_etcd_file(struct tether_test_etcd *etcd, const char *name);

#endif
