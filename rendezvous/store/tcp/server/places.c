/* The places of the store server: how many clients it serves at once, and which one has to go when
 * all places are taken.
 *
 * The server often shares its process with a worker, and idle connections could take all
 * descriptors of that process. So there is always a limit. A client is *silent* until it has sent a
 * whole request. At the limit a new client takes the place of the oldest silent client: idle
 * connections cannot keep members out. A new client is refused only when all others have spoken.
 *
 * While more than half of the places are taken, silent clients are closed after
 * `stall_timeout_ms`. That rule rests while a client of PyTorch 1.13 to 2.1 is connected: some of
 * those keep a second connection on which they may never send anything.
 *
 * In each round of the loop the server accepts clients for at most half of the places that no
 * speaking client has. Otherwise a burst of connections could displace a client whose request has
 * arrived and is read in the next round.
 */
#include <sys/resource.h>

#include "base/log.h"
#include "rendezvous/store/tcp/server/internal.h"

#define FALLBACK_CLIENTS 512 /* the limit of clients if the limit of descriptors is unknown */
#define LEAST_CLIENTS 16
#define MAX_ACCEPTS 64 /* most connections accepted in one round of the loop */

uint64_t tether__store_places_default(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return FALLBACK_CLIENTS;
    uint64_t half = limit.rlim_cur == RLIM_INFINITY ? INT32_MAX : limit.rlim_cur / 2;
    return half < LEAST_CLIENTS ? LEAST_CLIENTS : half;
}

bool tether__store_places_may_accept(tether_store_server *server)
{
    uint64_t speaking = server->stats.clients - server->n_silent;
    uint64_t half = speaking < server->max_clients ? (server->max_clients - speaking) / 2 : 0;
    if (server->n_accepts >= (half < 1 ? 1 : half < MAX_ACCEPTS ? half : MAX_ACCEPTS))
        return false;
    server->n_accepts++;
    return true;
}

static void log_full(tether_store_server *server, const char *what)
{
    unsigned left_out;
    int64_t now = tether__clock_now_ns(&tether__clock_system);
    if (tether__log_limit_passes(&server->full, now, &left_out))
        tether__log(TETHER_LOG_WARN, "store",
                    "all %llu places for clients are taken: %s (and %u more since this was last "
                    "logged); raise `ulimit -n` or max_clients if the group is that large",
                    (unsigned long long)server->max_clients, what, left_out);
}

static void drop_silent(struct tether__store_client *client)
{
    client->server->stats.silent++;
    tether__store_client_drop(client);
}

bool tether__store_places_enter(struct tether__store_client *client)
{
    tether_store_server *server = client->server;
    if (server->stats.clients > server->max_clients) {
        if (tether__list_empty(&server->silent)) {
            log_full(server, "refused a client, since all others have made requests");
            server->stats.refused++;
            return false;
        }
        log_full(server, "closed the oldest connection that has made no request");
        drop_silent(
            tether__list_entry(server->silent.next, struct tether__store_client, silent_node));
    }
    client->silent_since_ms = uv_now(client->uv.handle.loop);
    tether__list_push_back(&server->silent, &client->silent_node);
    server->n_silent++;
    if (server->stats.clients > server->max_clients / 2)
        tether__store_server_arm_sweep(server);
    return true;
}

void tether__store_places_heard(struct tether__store_client *client)
{
    if (!client->session.has_spoken || tether__list_empty(&client->silent_node))
        return;
    tether__list_remove(&client->silent_node);
    client->server->n_silent--;
    client->is_legacy = tether__store_session_is_legacy(&client->session);
    client->server->n_legacy += client->is_legacy;
}

void tether__store_places_leave(struct tether__store_client *client)
{
    client->server->n_silent -= !tether__list_empty(&client->silent_node);
    tether__list_remove(&client->silent_node);
    client->server->n_legacy -= client->is_legacy;
    client->is_legacy = false;
}

bool tether__store_places_sweep(tether_store_server *server)
{
    if (server->stall_timeout_ms < 0)
        return false;
    TETHER__LIST_FOR_EACH(node, &server->silent) {
        struct tether__store_client *client =
            tether__list_entry(node, struct tether__store_client, silent_node);
        uint64_t silent_ms = uv_now(server->sweep.loop) - client->silent_since_ms;
        if (server->stats.clients <= server->max_clients / 2)
            return false;
        if (server->n_legacy > 0 || silent_ms < (uint64_t)server->stall_timeout_ms)
            return true;
        drop_silent(client);
    }
    return false;
}
