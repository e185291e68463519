/* A client that sends and expects raw bytes: the test spells them out, so they do not depend on the
 * code under test.
 *
 *     int fd = raw_dial(port);
 *     RAW_SEND(fd, "\0" U64_2 "/k" U64_2 "v1");
 *     RAW_EXPECT(fd, "\1");
 */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_TCP_RAW_H
#define TETHER_TESTS_RENDEZVOUS_STORE_TCP_RAW_H

#include <stdbool.h>
#include <stddef.h>

/* Numbers as they are on the wire: 64 bits, low byte first. */
#define U64_0 "\0\0\0\0\0\0\0\0"
#define U64_1 "\1\0\0\0\0\0\0\0"
#define U64_2 "\2\0\0\0\0\0\0\0"
#define U64_3 "\3\0\0\0\0\0\0\0"
#define U64_4 "\4\0\0\0\0\0\0\0"
#define U64_5 "\5\0\0\0\0\0\0\0"
#define U64_6 "\6\0\0\0\0\0\0\0"
#define U64_MINUS_2 "\xfe\xff\xff\xff\xff\xff\xff\xff"
#define U64_MINUS_7 "\xf9\xff\xff\xff\xff\xff\xff\xff"

/* The first bytes of a V client. */
#define VALIDATE "\0\xce\xf7\x85\x3c"

/* Connects to 127.0.0.1. All of these functions fail the test on error. */
int raw_dial(int port);
void raw_send(int fd, const void *bytes, size_t len);
void raw_send_dribbling(int fd, const void *bytes, size_t len); /* one byte a segment */
void raw_expect(int fd, const void *bytes, size_t len, const char *file, int line);
void raw_expect_closed(int fd, const char *file, int line); /* and closes it here */

/* Whether there is nothing to read at the moment. */
bool raw_is_silent(int fd);

#define RAW_SEND(fd, bytes) raw_send(fd, bytes, sizeof(bytes) - 1)
#define RAW_EXPECT(fd, bytes) raw_expect(fd, bytes, sizeof(bytes) - 1, __FILE__, __LINE__)
#define RAW_EXPECT_CLOSED(fd) raw_expect_closed(fd, __FILE__, __LINE__)

#endif
