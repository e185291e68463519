/* Arbitrary bytes of clients: the store server stays consistent, and its answers do not depend on
 * how the bytes were split.
 *
 * The first byte of an input says how the rest is used. Two passes: the bytes of one client, fed
 * whole and then one by one, must give the same replies; then they are dealt out to three clients
 * who wait for one another's keys, two bytes (whose turn, how many) before each helping.
 */
#include <stdlib.h>
#include <string.h>

#include "rendezvous/store/tcp/server/session.h"
#include "tests/fuzz/fuzz.h"

#define CLIENTS 3
#define MAX_REPLIES ((size_t)1 << 20)

static const struct tether_store_limits asked = {.max_key = 64,
                                                 .max_value = 4096,
                                                 .max_keys = 64,
                                                 .max_message = 16384,
                                                 .max_buffered = 1 << 20};

/* A connection of the server without its socket: feeds and flushes a session. */
struct client {
    struct tether__store_session session;
    tether_buf in, replies;
};

static void take_replies(struct client *client)
{
    tether_buf *out = &client->session.out;
    if (client->replies.len < MAX_REPLIES)
        fuzz_check(tether_buf_append(&client->replies, tether_buf_bytes(out)) == TETHER_OK);
    out->len = 0;
}

static void feed(struct client *client, const void *data, size_t len)
{
    struct tether__store_session *session = &client->session;
    fuzz_check(tether_buf_append(&client->in, tether_bytes_of(data, len)) == TETHER_OK);
    for (;;) {
        size_t need = 0;
        size_t taken = tether__store_session_feed(session, client->in.data, client->in.len, &need);
        fuzz_check(taken <= client->in.len);
        fuzz_check(session->out.len <= TETHER__STORE_SESSION_HIGH_WATER + 2 * asked.max_message);
        bool full = session->out.len >= TETHER__STORE_SESSION_HIGH_WATER;
        take_replies(client);
        if (session->why)
            break;
        memmove(client->in.data, client->in.data + taken, client->in.len - taken);
        client->in.len -= taken;
        fuzz_check(full || need > client->in.len);
        fuzz_check(full || need <= asked.max_message + 16);
        if (!full)
            break;
    }
}

static void client_fini(struct client *client)
{
    tether__store_session_fini(&client->session);
    tether_buf_fini(&client->in);
    tether_buf_fini(&client->replies);
}

static void start(struct tether__store_hub *hub, struct client *clients, int n, bool l1)
{
    struct tether_store_limits limits = tether__store_wire_limits(asked);
    fuzz_check(tether__store_hub_init(hub, &limits, l1) == TETHER_OK);
    memset(clients, 0, (size_t)n * sizeof *clients);
    for (int i = 0; i < n; i++)
        tether__store_session_init(&clients[i].session, hub);
}

static void finish(struct tether__store_hub *hub, struct client *clients, int n)
{
    for (int i = 0; i < n; i++)
        client_fini(&clients[i]);
    fuzz_check(hub->buffered == 0);
    fuzz_check(hub->waiting == 0);
    tether__store_hub_fini(hub);
}

static void cut_makes_no_difference(const uint8_t *data, size_t size, bool l1)
{
    struct tether__store_hub hubs[2];
    struct client whole, dribbled;
    start(&hubs[0], &whole, 1, l1);
    start(&hubs[1], &dribbled, 1, l1);
    feed(&whole, data, size);
    for (size_t i = 0; i < size && !dribbled.session.why; i++)
        feed(&dribbled, data + i, 1);
    fuzz_check(!whole.session.why == !dribbled.session.why);
    fuzz_check(whole.session.is_waiting == dribbled.session.is_waiting);
    fuzz_check(
        tether_bytes_equal(tether_buf_bytes(&whole.replies), tether_buf_bytes(&dribbled.replies)));
    finish(&hubs[0], &whole, 1);
    finish(&hubs[1], &dribbled, 1);
}

static void clients_interleave(const uint8_t *data, size_t size, bool l1)
{
    struct tether__store_hub hub;
    struct client clients[CLIENTS];
    start(&hub, clients, CLIENTS, l1);
    while (size >= 2) {
        struct client *client = &clients[data[0] % CLIENTS];
        size_t len = data[1] < size - 2 ? data[1] : size - 2;
        if (client->session.why) { /* dropped: the next one has its place */
            client_fini(client);
            memset(client, 0, sizeof *client);
            tether__store_session_init(&client->session, &hub);
        }
        feed(client, data + 2, len);
        if (data[1] % 16 == 15) { /* time passes */
            tether__store_hub_sweep(&hub);
            if (client->session.is_unsure) {
                tether__store_session_settle(&client->session);
                feed(client, "", 0);
            }
        }
        for (int i = 0; i < CLIENTS; i++)
            take_replies(&clients[i]); /* of waits that this has ended */
        data += 2 + len;
        size -= 2 + len;
    }
    finish(&hub, clients, CLIENTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    cut_makes_no_difference(data + 1, size - 1, data[0] & 1);
    clients_interleave(data + 1, size - 1, data[0] & 1);
    return 0;
}
