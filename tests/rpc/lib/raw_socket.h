/* A unix socket without a transport, with which a test plays a misbehaving peer. */
#ifndef TETHER_TESTS_RPC_RAW_SOCKET_H
#define TETHER_TESTS_RPC_RAW_SOCKET_H

#include <stddef.h>

/* Connected to "unix-abstract:NAME"; blocking. Fails the test when it can't. */
int raw_connect(const char *address);

/* Listens on "unix-abstract:NAME", and takes nothing in by itself. */
int raw_listen(const char *address);

/* Writes all of it, or as much as the other end takes before it hangs up. */
void raw_write(int fd, const void *bytes, size_t len);

/* Reads exactly `len` bytes; fails the test when fewer come. */
void raw_read(int fd, void *ret_bytes, size_t len);

/* Reads until the other end hangs up; fails the test when it does not. */
void raw_await_hangup(int fd, const char *what);

#endif
