/* Fixtures of the tests of the etcd store. See fixture.h. */
#include "tests/rendezvous/store/etcd/fixture.h"

#include <stdio.h>
#include <stdlib.h>

struct tether_test_etcd *etcd;

tether_store *etcd_store(const char *endpoints, const char *prefix)
{
    tether_store *store = NULL;
    assert_ok(tether_store_etcd_new(
        TETHER_STORE_ETCD_OPTS(.endpoints = endpoints, .prefix = prefix), &store, err));
    return store;
}

struct tether__etcd *etcd_client(const char *endpoints, const char *prefix)
{
    struct tether__etcd *client = NULL;
    assert_ok(tether__etcd_new(TETHER_STORE_ETCD_OPTS(.endpoints = endpoints, .prefix = prefix),
                               etcd_soon(), &client, err));
    return client;
}

bool etcd_is_out_of_reach(tether_status status)
{
    return status == TETHER_EUNAVAILABLE || status == TETHER_ETIMEOUT;
}

int64_t etcd_soon(void)
{
    return tether__deadline_in(&tether__clock_system, TETHER_TEST_LIMIT_MS);
}

void etcd_admin(struct tether__etcd *client, const char *method, const ProtobufCMessage *request)
{
    char path[64];
    snprintf(path, sizeof path, "/etcdserverpb.%s", method);
    struct tether__etcd_method call = {path, &tether_test_etcd__nothing__descriptor};
    ProtobufCMessage *reply = NULL;
    assert_ok(tether__etcd_call(tether__etcd_channel(client), &call, request, etcd_soon(), NULL,
                                &reply, err));
    tether__pb_free(reply);
}

tether_status etcd_revoke(struct tether__etcd *client, int64_t lease)
{
    Etcdserverpb__LeaseRevokeRequest request = ETCDSERVERPB__LEASE_REVOKE_REQUEST__INIT;
    request.id = lease;
    ProtobufCMessage *reply = NULL;
    tether_status st =
        tether__etcd_call(tether__etcd_channel(client), &tether__etcd_lease_revoke_call,
                          &request.base, etcd_soon(), NULL, &reply, NULL);
    tether__pb_free(reply);
    return st;
}

void etcd_compact(struct tether__etcd *client)
{
    struct tether__etcd_value unused = TETHER__ETCD_VALUE_INIT;
    TetherTestEtcd__CompactionRequest request = TETHER_TEST_ETCD__COMPACTION_REQUEST__INIT;
    request.physical = true;
    assert_ok(tether__etcd_get(client, tether_bytes_str("x"), etcd_soon(), &unused,
                               &request.revision, err));
    etcd_admin(client, "KV/Compact", &request.base);
    tether_buf_fini(&unused.bytes);
}

int64_t etcd_look(struct tether__etcd *client, const char *start, char *value, int64_t *version)
{
    char end[64];
    snprintf(end, sizeof end, "%s", start);
    end[strlen(end) - 1]++;
    struct tether__etcd_op range = {.key = tether_bytes_str(start), .end = tether_bytes_str(end)};
    Etcdserverpb__TxnResponse *reply = NULL;
    assert_ok(tether__etcd_read(client, &range, 1, etcd_soon(), &reply, err));
    const Etcdserverpb__RangeResponse *found = reply->responses[0]->response_range;
    const Mvccpb__KeyValue *kv = found->n_kvs ? found->kvs[0] : NULL;
    if (value)
        snprintf(value, 64, "%.*s", kv ? (int)kv->value.len : 0, kv ? (char *)kv->value.data : "");
    if (version)
        *version = kv ? kv->version : 0;
    int64_t count = found->count;
    tether__pb_free(reply);
    return count;
}

int world_setup(void **state)
{
    static int made;
    struct world *w = calloc(1, sizeof *w);
    snprintf(w->prefix, sizeof w->prefix, "world/%d/", made++);
    w->client = etcd_client(tether_test_etcd_endpoint(etcd), w->prefix);
    w->direct = etcd_store(tether_test_etcd_endpoint(etcd), w->prefix);
    w->proxy = tether_test_proxy_start(tether_test_etcd_endpoint(etcd));
    w->store = etcd_store(tether_test_proxy_endpoint(w->proxy), w->prefix);
    *state = w;
    return 0;
}

int world_teardown(void **state)
{
    struct world *w = *state;
    tether_store_release(w->store);
    tether_store_release(w->direct);
    tether__etcd_free(w->client);
    tether_test_proxy_free(w->proxy);
    free(w);
    return 0;
}

const char *under(struct world *w, const char *rest)
{
    size_t skip = strlen(w->prefix);
    for (size_t i = 0;; i++) {
        assert_true(i < sizeof w->names / sizeof w->names[0]);
        if (!*w->names[i])
            snprintf(w->names[i], sizeof w->names[0], "%s%s", w->prefix, rest);
        if (strcmp(w->names[i] + skip, rest) == 0)
            return w->names[i];
    }
}

static void *run_thread(void *arg)
{
    struct run *run = arg;
    run->call(run);
    return NULL;
}

void run_start(struct run *run)
{
    assert_int_equal(pthread_create(&run->thread, NULL, run_thread, run), 0);
}

void run_join(struct run *run)
{
    pthread_join(run->thread, NULL);
    if (run->status != TETHER_OK)
        fail_msg("%s: %s", tether_status_name(run->status), run->error.message);
}
