/* Hostile processes with a valid certificate, or of an earlier run:
 * - the holder of a certificate of the group's CA tries each name but its own, and other ways in;
 * - a holder says that it is a later start of another worker, or of one that is not on the list;
 * - a holder that is not on the list of the group tries to look at it;
 * - a worker of an earlier run still listens, and calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/group/directory.h"
#include "rpc/peer/peer.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/certs.h"
#include "tests/rpc/lib/echo.h"
#include "tests/rpc/lib/intruder.h"
#include "tests/rpc/lib/plain_client.h"

#define LIMIT TETHER_TEST_LIMIT_MS

enum { SERVING, TRIED };
enum { WORKER, HOLDER };

#define OPTS(...)                                             \
    (struct tether_agent_opts)                                \
    {                                                         \
        .size = sizeof(struct tether_agent_opts), __VA_ARGS__ \
    }
#define TLS(ca, name) \
    .tls_ca_pem = cert_##ca, .tls_cert_pem = cert_##name, .tls_key_pem = key_##name

static const char *const only_omega[] = {"omega"};

/* The worker fills it for the hostile process, which has its own store in `leftover_address`. */
struct page {
    char folder[64], address[256], leftover_address[256], run[TETHER__RUN_SIZE];
    uint64_t start; /* of the worker */
};

static struct page *page_of(struct tether_test_world *world)
{
    _Static_assert(sizeof(struct page) <= sizeof world->page, "the page is too small");
    return (struct page *)world->page;
}

static tether_store *open_store(struct tether_test_world *world, const char *file)
{
    tether_store *store = NULL;
    tether_error err = {0};
    char path[96];
    snprintf(path, sizeof path, "%s/%s", page_of(world)->folder, file);
    if (tether_store_file_new(path, -1, &store, &err))
        fail_msg("%s", err.message);
    return store;
}

static void make_folder(struct tether_test_world *world)
{
    struct page *page = page_of(world);
    snprintf(page->folder, sizeof page->folder, "/tmp/tether-holder-XXXXXX");
    assert_non_null(mkdtemp(page->folder));
}

static void remove_folder(struct tether_test_world *world)
{
    static const char *const files[] = {"store", "earlier"};
    char path[96];
    for (size_t i = 0; i < TETHER__ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", page_of(world)->folder, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(page_of(world)->folder), 0);
}

static tether_status try_start(tether_store *store,
                               const char *name,
                               const struct tether_agent_opts *opts,
                               tether_agent **ret_agent,
                               tether_error *reterr)
{
    struct tether_agent_opts own = *opts;
    own.store = store;
    own.name = name;
    own.threads = 1;
    own.lease_ms = LIMIT;
    own.no_unix_socket = true;
    tether_status st = tether_agent_new(&own, ret_agent, reterr);
    if (st == TETHER_OK)
        st = tether_agent_register_inline(*ret_agent, "echo", tether_test_echo, NULL, reterr);
    return st == TETHER_OK ? tether_agent_start(*ret_agent, reterr) : st;
}

static tether_agent *start(tether_store *store,
                           const char *name,
                           const struct tether_agent_opts *opts)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (try_start(store, name, opts, &agent, &err) != TETHER_OK)
        fail_msg("%s: %s", name, err.message);
    return agent;
}

static void call_ok(tether_agent *from, const char *to)
{
    tether_error err = {0};
    if (tether_rpc_sync(from, to, "echo", NULL, LIMIT, NULL, &err) != TETHER_OK)
        fail_msg("%s calls %s: %s", tether_agent_name(from), to, err.message);
}

static uint64_t known_start(tether_agent *agent, const char *name)
{
    struct tether__peer *peer = tether__agent_find_peer(agent, name);
    uint64_t start = peer ? tether__peer_known_start(peer) : 0;
    tether__peer_release(peer);
    return start;
}

/* Two workers of a group serve until the hostile process is through, and call each other. */
static void serve(struct tether_test_world *world, const struct tether_agent_opts *alpha_opts)
{
    make_folder(world);
    tether_store *store = open_store(world, "store");
    tether_agent *alpha = start(store, "alpha", alpha_opts);
    tether_agent *omega = start(store, "omega", &OPTS(TLS(right_ca, many)));
    snprintf(page_of(world)->address, sizeof page_of(world)->address, "%s",
             tether_agent_address(alpha));
    page_of(world)->start = alpha->self.incarnation;
    memcpy(page_of(world)->run, alpha->directory.run, sizeof page_of(world)->run);
    tether_test_mark(world, SERVING);
    while (atomic_load(&world->marks[TRIED]) == 0) {
        call_ok(omega, "alpha");
        call_ok(alpha, "omega");
        tether_test_nap(0);
    }
    assert_false(atomic_load(&alpha->replaced) || atomic_load(&omega->replaced));
    assert_int_equal(known_start(alpha, "omega"), omega->self.incarnation);
    assert_true(!alpha_opts->allowed_peers || known_start(alpha, "delta") == 0);
    tether_agent_release(omega);
    tether_agent_release(alpha);
    tether_store_release(store);
    remove_folder(world);
}

/* ---- Names that the certificate does not have ---- */

struct attempt {
    const char *what, *as;
    struct tether_agent_opts opts;
    tether_status status; /* of a call to alpha, or of the start */
};

static const struct attempt attempts[] = {
    {"its own name", "delta", OPTS(TLS(right_ca, delta)), TETHER_OK},
    {"a name that no worker has", "eve", OPTS(TLS(right_ca, delta)), TETHER_EPERM},
    {"the name of another worker", "alpha", OPTS(TLS(right_ca, delta)), TETHER_EPERM},
    {"a part of its own name", "delt", OPTS(TLS(right_ca, delta)), TETHER_EPERM},
    {"its own name in capitals", "DELTA", OPTS(TLS(right_ca, delta)), TETHER_EPERM},
    {"its address", "127.0.0.1", OPTS(TLS(right_ca, delta)), TETHER_EPERM},
    {"its common name, mail and URI", "zeta", OPTS(TLS(right_ca, zeta)), TETHER_EPERM},
    {"a certificate of another CA", "gamma",
     OPTS(.tls_ca_pem = cert_right_ca, .tls_cert_pem = cert_gamma, .tls_key_pem = key_gamma),
     TETHER_EPERM},
    {"no certificate", "delta", OPTS(.token = NULL), TETHER_EPERM},
};

static void attempt(tether_store *store, const struct attempt *attempt)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    tether_status st = try_start(store, attempt->as, &attempt->opts, &agent, &err);
    if (st == TETHER_OK)
        st = tether_rpc_sync(agent, "alpha", "echo", NULL, LIMIT, NULL, &err);
    if (st != attempt->status)
        fail_msg("%s: %s: %s", attempt->what, tether_status_name(st), err.message);
    tether_agent_release(agent);
}

TETHER_PROC_TEST(client_is_accepted_only_under_the_name_in_its_certificate, .timeout_ms = 4 * LIMIT)
{
    if (rank == WORKER) {
        serve(self->world, &OPTS(TLS(right_ca, alpha)));
        return;
    }
    tether_test_await_mark(self->world, SERVING, 1);
    tether_store *store = open_store(self->world, "store");
    for (size_t i = 0; i < TETHER__ARRAY_LEN(attempts); i++)
        attempt(store, &attempts[i]);
    tether_store_release(store);
    tether_test_mark(self->world, TRIED);
}

/* ---- A later start ---- */

/* Says that this is a later start of `as`, and, every other time, that alpha was replaced, too. */
static void claim_later_start(struct tether_test_world *world,
                              const struct tether__tls *tls,
                              const char *as)
{
    const struct page *page = page_of(world);
    const struct tether__self self = {
        .group = "tether", .run = page->run, .name = as, .incarnation = 1000000};
    Tether__State claim = TETHER__STATE__INIT;
    struct node node;
    claim.from_incarnation = self.incarnation;
    claim.dial = 1;
    node_start(&node, &(struct tether__transport_opts){.tls = tls});
    atomic_store(&node.mute, true);
    for (int i = 0; i < 4; i++) {
        claim.to_incarnation = i % 2 ? 1000000 : page->start;
        wire_await_closed(intruder_dial(&node, page->address, "alpha", &self, &claim));
    }
    node_stop(&node);
}

/* It knows what a worker of the group would say, so only the certificate or the list stops it. */
TETHER_PROC_TEST(holder_has_no_effect_when_it_claims_a_later_start_of_another_worker,
                 .timeout_ms = 4 * LIMIT)
{
    static const struct tether__tls of_delta = {.ca_pem = cert_right_ca,
                                                .cert_pem = cert_delta,
                                                .key_pem = key_delta},
                                    of_another_ca = {.ca_pem = cert_right_ca,
                                                     .cert_pem = cert_gamma,
                                                     .key_pem = key_gamma};
    if (rank == WORKER) {
        serve(self->world, &OPTS(TLS(right_ca, alpha)));
        return;
    }
    tether_test_await_mark(self->world, SERVING, 1);
    claim_later_start(self->world, &of_delta, "omega");
    claim_later_start(self->world, &of_another_ca, "omega");
    tether_test_mark(self->world, TRIED);
}

TETHER_PROC_TEST(holder_has_no_effect_when_it_claims_a_later_start_and_is_not_on_the_list,
                 .timeout_ms = 4 * LIMIT)
{
    static const struct tether__tls of_delta = {
        .ca_pem = cert_right_ca, .cert_pem = cert_delta, .key_pem = key_delta};
    if (rank == WORKER) {
        serve(self->world,
              &OPTS(TLS(right_ca, alpha), .allowed_peers = only_omega, .n_allowed_peers = 1));
        return;
    }
    tether_test_await_mark(self->world, SERVING, 1);
    claim_later_start(self->world, &of_delta, "delta");
    claim_later_start(self->world, &of_delta, "omega");
    tether_test_mark(self->world, TRIED);
}

/* ---- A group that it does not belong to ---- */

static void call_plainly(const char *address)
{
    struct plain_client client;
    struct plain_call call;
    plain_client_init_tls(&client, address, cert_right_ca, cert_delta, key_delta);
    plain_start(&client, &(struct plain_request){.method = "/tether.Worker/Call", .body = ""},
                &call);
    plain_finish(&call);
    assert_int_equal(call.code, GRPC_STATUS_PERMISSION_DENIED);
    plain_free(&call);
    plain_client_fini(&client);
}

TETHER_PROC_TEST(holder_of_certificate_is_refused_when_it_is_not_on_the_list,
                 .timeout_ms = 4 * LIMIT)
{
    if (rank == WORKER) {
        serve(self->world,
              &OPTS(TLS(right_ca, alpha), .allowed_peers = only_omega, .n_allowed_peers = 1));
        return;
    }
    tether_test_await_mark(self->world, SERVING, 1);
    tether_store *store = open_store(self->world, "store");
    attempt(store,
            &(const struct attempt){"an observer", "delta",
                                    OPTS(TLS(right_ca, delta), .observe = true), TETHER_EPERM});
    attempt(store,
            &(const struct attempt){"an observer under a listed name", "omega",
                                    OPTS(TLS(right_ca, delta), .observe = true), TETHER_EPERM});
    attempt(store,
            &(const struct attempt){"a worker", "delta", OPTS(TLS(right_ca, delta)), TETHER_EPERM});
    call_plainly(page_of(self->world)->address);
    tether_store_release(store);
    tether_test_mark(self->world, TRIED);
}

/* ---- A worker of an earlier run ---- */

static void publish(tether_agent *agent, const char *worker, const char *address)
{
    struct tether__worker_record record = {.incarnation = 77};
    snprintf(record.name, sizeof record.name, "%s", worker);
    snprintf(record.address, sizeof record.address, "%s", address);
    assert_int_equal(
        tether__directory_publish(&agent->directory, &record, -1, NULL, NULL, LIMIT, NULL),
        TETHER_OK);
}

static void expect_other_run(tether_agent *from, const char *to)
{
    tether_error err = {0};
    assert_int_equal(tether_rpc_sync(from, to, "echo", NULL, LIMIT, NULL, &err), TETHER_EPERM);
    if (!strstr(err.message, "another run"))
        fail_msg("%s", err.message);
    assert_false(atomic_load(&from->replaced));
}

TETHER_PROC_TEST(worker_of_an_earlier_run_is_refused_when_it_listens_and_when_it_calls)
{
    static const struct tether_agent_opts opts = OPTS(.token = "sesame");
    struct page *page = page_of(self->world);
    if (rank == WORKER)
        make_folder(self->world);
    else
        tether_test_await_mark(self->world, SERVING, 1);
    tether_store *store = open_store(self->world, rank == WORKER ? "store" : "earlier");
    tether_agent *agent = start(store, rank == WORKER ? "caller" : "leftover", &opts);
    if (rank == WORKER) {
        snprintf(page->address, sizeof page->address, "%s", tether_agent_address(agent));
        tether_test_mark(self->world, SERVING);
        tether_test_await_mark(self->world, SERVING, 2);
        publish(agent, "leftover", page->leftover_address);
        expect_other_run(agent, "leftover");
        tether_test_await_mark(self->world, TRIED, 1);
    } else {
        snprintf(page->leftover_address, sizeof page->leftover_address, "%s",
                 tether_agent_address(agent));
        tether_test_mark(self->world, SERVING);
        publish(agent, "caller", page->address);
        expect_other_run(agent, "caller");
        tether_test_mark(self->world, TRIED);
        tether_test_await_mark(self->world, TRIED, 2);
    }
    tether_agent_release(agent);
    tether_store_release(store);
    tether_test_mark(self->world, TRIED);
    if (rank == WORKER) {
        tether_test_await_mark(self->world, TRIED, 3);
        remove_folder(self->world);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_is_accepted_only_under_the_name_in_its_certificate),
        cmocka_unit_test(holder_has_no_effect_when_it_claims_a_later_start_of_another_worker),
        cmocka_unit_test(holder_has_no_effect_when_it_claims_a_later_start_and_is_not_on_the_list),
        cmocka_unit_test(holder_of_certificate_is_refused_when_it_is_not_on_the_list),
        cmocka_unit_test(worker_of_an_earlier_run_is_refused_when_it_listens_and_when_it_calls),
    };
    return cmocka_run_group_tests_name("certificate_holder", tests, NULL, NULL);
}
