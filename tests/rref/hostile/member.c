/* See member.h. */
#include "tests/rref/hostile/member.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/agent/internal.h"
#include "rpc/agent/routes.h"
#include "rpc/transport/transport.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/echo.h"
#include "tests/rpc/lib/raw_socket.h"

struct member_notice *member_notice(struct tether_test_world *world)
{
    _Static_assert(sizeof(struct member_notice) <= sizeof world->page, "the page is too small");
    return (struct member_notice *)world->page;
}

void member_notice_fill(struct member_notice *notice, tether_agent *worker)
{
    snprintf(notice->unix_address, sizeof notice->unix_address, "%s",
             worker->local.transport->address);
    memcpy(notice->run, worker->directory.run, sizeof notice->run);
    notice->incarnation = worker->self.incarnation;
    notice->last_start = worker->self.incarnation;
}

void member_send_bytes(struct member *member, const void *bytes, size_t len)
{
    const uint8_t head[] = {(uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16),
                            (uint8_t)(len >> 24)};
    raw_write(member->fd, head, sizeof head);
    raw_write(member->fd, bytes, len);
}

void member_send_whole(struct member *member, const Tether__Batch *batch)
{
    size_t len = tether__batch__get_packed_size(batch);
    uint8_t *bytes = malloc(len + 1);
    assert_non_null(bytes);
    tether__batch__pack(batch, bytes);
    member_send_bytes(member, bytes, len);
    free(bytes);
}

void member_send_batch(struct member *member, Tether__Frame **frames, size_t n)
{
    Tether__Batch batch = TETHER__BATCH__INIT;
    batch.frame = frames;
    batch.n_frame = n;
    member_send_whole(member, &batch);
}

void member_send(struct member *member, Tether__Frame *frame)
{
    frame->seq = ++member->seq;
    member_send_batch(member, &frame, 1);
}

void member_acknowledge(struct member *member, uint64_t seq)
{
    Tether__Batch batch = TETHER__BATCH__INIT;
    batch.ack = seq;
    member_send_whole(member, &batch);
}

/* False: the worker has hung up. */
static bool read_bytes(struct member *member, void *ret_bytes, size_t len)
{
    struct pollfd poller = {.fd = member->fd, .events = POLLIN};
    for (uint8_t *at = ret_bytes; len;) {
        if (poll(&poller, 1, TETHER_TEST_LIMIT_MS) != 1)
            fail_msg("the worker neither answers nor hangs up");
        ssize_t n = read(member->fd, at, len);
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

Tether__Batch *member_read(struct member *member)
{
    static uint8_t bytes[1 << 20];
    uint8_t head[4];
    if (!read_bytes(member, head, sizeof head))
        return NULL;
    size_t len = head[0] | head[1] << 8 | head[2] << 16 | (size_t)head[3] << 24;
    if (len == UINT32_MAX)
        return NULL;
    assert_true(len <= sizeof bytes);
    if (!read_bytes(member, bytes, len))
        return NULL;
    Tether__Batch *batch = tether__batch__unpack(NULL, len, bytes);
    assert_non_null(batch);
    return batch;
}

static bool say_hello(struct member *member, uint64_t to_start)
{
    const uint8_t nonce[TETHER__NONCE_SIZE] = {7};
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__State state = TETHER__STATE__INIT;
    tether__handshake_init(&member->handshake, &member->self, true, "w", nonce);
    Tether__Hello1 hello1 = tether__handshake_begin(&member->handshake);
    frame.body_case = TETHER__FRAME__BODY_HELLO1;
    frame.hello1 = &hello1;
    member_send_batch(member, (Tether__Frame *[]){&frame}, 1);
    Tether__Batch *batch = member_read(member);
    bool ok =
        batch && batch->n_frame == 1 && batch->frame[0]->body_case == TETHER__FRAME__BODY_HELLO2 &&
        tether__handshake_on_hello2(&member->handshake, batch->frame[0]->hello2, NULL) == TETHER_OK;
    if (batch)
        tether__batch__free_unpacked(batch, NULL);
    if (!ok)
        return false;
    state.from_incarnation = member->self.incarnation;
    state.to_incarnation = to_start;
    state.lease_ms = 30000;
    state.dial = member->dial;
    Tether__Hello3 hello3 = tether__handshake_finish(&member->handshake, &state);
    frame.body_case = TETHER__FRAME__BODY_HELLO3;
    frame.hello3 = &hello3;
    member_send_batch(member, (Tether__Frame *[]){&frame}, 1);
    batch = member_read(member); /* the worker's state */
    ok = batch && batch->n_frame == 1 && batch->frame[0]->body_case == TETHER__FRAME__BODY_STATE &&
         batch->frame[0]->state->refused == 0;
    if (batch)
        tether__batch__free_unpacked(batch, NULL);
    return ok;
}

bool member_join(struct member *member,
                 const struct member_notice *notice,
                 const char *name,
                 uint64_t start)
{
    return member_join_again(member, notice, name, start, 1);
}

bool member_join_again(struct member *member,
                       const struct member_notice *notice,
                       const char *name,
                       uint64_t start,
                       uint64_t dial)
{
    return member_join_to(member, notice, name, start, dial, notice->incarnation);
}

bool member_join_to(struct member *member,
                    const struct member_notice *notice,
                    const char *name,
                    uint64_t start,
                    uint64_t dial,
                    uint64_t to_start)
{
    *member = (struct member){.fd = raw_connect(notice->unix_address), .dial = dial};
    snprintf(member->name, sizeof member->name, "%s", name);
    member->self = (struct tether__self){.group = "tether",
                                         .run = notice->run,
                                         .name = member->name,
                                         .token = MEMBER_TOKEN,
                                         .incarnation = start};
    bool joined = say_hello(member, to_start);
    if (!joined)
        close(member->fd);
    return joined;
}

int member_await_reply(struct member *member, uint64_t id)
{
    for (Tether__Batch *batch; (batch = member_read(member));) {
        int status = -1;
        uint64_t last = 0;
        for (size_t i = 0; i < batch->n_frame; i++) {
            const Tether__Frame *frame = batch->frame[i];
            last = frame->seq ? frame->seq : last;
            if (frame->body_case == TETHER__FRAME__BODY_REPLY && frame->reply->id == id)
                status = frame->reply->status;
        }
        tether__batch__free_unpacked(batch, NULL);
        if (last)
            member_acknowledge(member, last);
        if (status >= 0)
            return status;
    }
    return -1;
}

void member_await_hangup(struct member *member)
{
    for (Tether__Batch *batch; (batch = member_read(member));)
        tether__batch__free_unpacked(batch, NULL);
}

void member_call(struct member *member,
                 uint64_t id,
                 const char *function,
                 Tether__Ref **refs,
                 size_t n_refs)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__Call message = TETHER__CALL__INIT;
    frame.body_case = TETHER__FRAME__BODY_CALL;
    frame.call = &message;
    message.id = id;
    message.function = (char *)function;
    message.ref = refs;
    message.n_ref = n_refs;
    member_send(member, &frame);
}

Tether__RefId member_id(uint64_t counter)
{
    Tether__RefId id = TETHER__REF_ID__INIT;
    id.creator = 7;
    id.incarnation = MEMBER_START;
    id.counter = counter;
    return id;
}

void member_refs_init(struct member_refs *refs, size_t n, const char *owner, uint64_t first)
{
    *refs = (struct member_refs){calloc(n, sizeof *refs->refs), calloc(n, sizeof *refs->pointers),
                                 calloc(n, sizeof *refs->ids), n};
    assert_true(refs->refs && refs->pointers && refs->ids);
    for (size_t i = 0; i < n; i++) {
        refs->ids[i] = member_id(first + i);
        tether__ref__init(&refs->refs[i]);
        refs->refs[i].id = refs->refs[i].fork = &refs->ids[i];
        refs->refs[i].owner_name = (char *)owner;
        refs->pointers[i] = &refs->refs[i];
    }
}

void member_refs_fini(struct member_refs *refs)
{
    free(refs->ids);
    free(refs->pointers);
    free(refs->refs);
}

/* ---- The group ---- */

static tether_status drop(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    (void)ud, (void)arg, (void)ret, (void)err;
    return TETHER_OK;
}

static tether_status big(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    static uint8_t bytes[64 * 1024];
    (void)ud, (void)arg;
    return tether_value_new(tether_bytes_of(bytes, sizeof bytes), ret, err);
}

static tether_status hold(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    struct member_group *group = ud;
    (void)arg, (void)ret, (void)err;
    tether_test_event_wait(&group->released, 1, TETHER_TEST_LIMIT_MS);
    return TETHER_OK;
}

tether_agent *member_group_agent(struct member_group *group, const char *name)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_agent_new(
            TETHER_AGENT_OPTS(.name = name, .store = group->store, .threads = 1,
                              .token = MEMBER_TOKEN, .max_calls_per_peer = MEMBER_MAX_CALLS,
                              .max_bytes_per_peer = MEMBER_MAX_BYTES,
                              .max_message_bytes = MEMBER_MAX_MESSAGE),
            &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_register_inline(agent, "drop", drop, NULL, &err) ||
        tether_agent_register_inline(agent, "big", big, NULL, &err) ||
        tether_agent_register(agent, "hold", hold, group, &err) || tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    return agent;
}

static void publish_silent_worker(struct member_group *group, const char *address)
{
    tether_error err = {0};
    struct tether__directory *directory = &group->worker->directory;
    struct tether__worker_record record = {.name = "mallory",
                                           .id = MEMBER_SILENT_ID,
                                           .incarnation = MEMBER_START - 1,
                                           .address = "127.0.0.1:9"};
    snprintf(record.unix_address, sizeof record.unix_address, "%s", address);
    snprintf(record.host, sizeof record.host, "%s", directory->host);
    if (tether__directory_publish(directory, &record, -1, NULL, NULL, TETHER_TEST_LIMIT_MS, &err))
        fail_msg("%s", err.message);
}

static void *go_on_calling(void *arg)
{
    struct member_group *group = arg;
    tether_error err = {0};
    while (!group->failure[0] && !atomic_load(&group->stop)) {
        if (tether_rpc_sync(group->friend, "w", "echo", NULL, TETHER_TEST_LIMIT_MS, NULL, &err))
            snprintf(group->failure, sizeof group->failure, "%s", err.message);
        group->n_calls++;
        tether_test_nap(0);
    }
    return NULL;
}

void member_group_start(struct member_group *group, struct member_notice *notice)
{
    *group = (struct member_group){.store = NULL};
    tether_test_event_init(&group->released);
    assert_int_equal(tether_store_hash_new(&group->store, NULL), TETHER_OK);
    group->worker = member_group_agent(group, "w");
    group->friend = member_group_agent(group, "friend");
    snprintf(notice->silent_address, sizeof notice->silent_address,
             "unix-abstract:tether-silent-%d", (int)getpid());
    publish_silent_worker(group, notice->silent_address);
    member_notice_fill(notice, group->worker);
    notice->last_start = group->friend->self.incarnation;
    notice->friend_id = group->friend->self.id;
    assert_int_equal(pthread_create(&group->thread, NULL, go_on_calling, group), 0);
}

void member_group_end(struct member_group *group)
{
    tether_error err = {0};
    atomic_store(&group->stop, true);
    pthread_join(group->thread, NULL);
    if (group->failure[0])
        fail_msg("a call of the group failed: %s", group->failure);
    if (tether_rpc_sync(group->friend, "w", "echo", NULL, TETHER_TEST_LIMIT_MS, NULL, &err))
        fail_msg("a call of the group failed after the attack: %s", err.message);
    print_message("%d calls of the group while the member attacked\n", group->n_calls);
    tether_test_event_signal(&group->released);
    tether_agent_release(group->friend);
    tether_agent_release(group->worker);
    tether_store_release(group->store);
    tether_test_event_fini(&group->released);
}
