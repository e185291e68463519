/* A scripted store server: follows a script, connection by connection, and checks that the client
 * under test sends the scripted bytes.
 *
 *     static const struct fake_step script[] = {
 *         FAKE(VALIDATE "\x0dTeth", "Teth"),    a client comes, says this and gets that
 *         FAKE("\x07", U64_3),                  then this on the same connection
 *         FAKE_CLOSE,                           then the server closes it; the next step is the
 * next client
 *     };
 *     struct fake_server *fake = fake_start(script, sizeof script / sizeof script[0]);
 *     ... use fake_port(fake) ...
 *     fake_end(fake);                           asserts that the whole script was played
 */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_TCP_FAKE_SERVER_H
#define TETHER_TESTS_RENDEZVOUS_STORE_TCP_FAKE_SERVER_H

#include <stddef.h>

struct fake_step {
    const char *request; /* NULL: the client closes the connection */
    size_t request_len;
    const char *reply; /* NULL: close the connection */
    size_t reply_len;
};

#define FAKE(request, reply)                                   \
    {                                                          \
        request, sizeof(request) - 1, reply, sizeof(reply) - 1 \
    }
#define FAKE_CLOSE     \
    {                  \
        "", 0, NULL, 0 \
    }
#define FAKE_AWAIT_CLOSE \
    {                    \
        NULL, 0, NULL, 0 \
    } /* the client closes the connection and opens another */

struct fake_server *fake_start(const struct fake_step *steps, size_t n);
int fake_port(const struct fake_server *fake);

/* The client must have closed its connections. */
void fake_end(struct fake_server *fake);

#endif
