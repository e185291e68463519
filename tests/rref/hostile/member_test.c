/* A member of the group that sends messages that no worker would: more references than a value can
 * carry, references that are never confirmed, announcements of objects that are never created,
 * floods of fetches and fork requests, replies without a request. It is a process of its own with a
 * plain socket (member.h). The worker keeps to its limits, and its group goes on calling. */
#include <stdio.h>
#include <unistd.h>

#include "rref/context.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/raw_socket.h"
#include "tests/rref/hostile/member.h"

enum { SERVING, ATTACKED, CHECKED };
enum { WORKER, MEMBER, N_RANKS };

#define MAX_CALLS MEMBER_MAX_CALLS
#define MAX_REFS 1024 /* in one call or reply */
#define N_FEW 30      /* calls of as many references: the worker owes less for them than it may */
#define N_MANY 100    /* the worker owes more */

/* The steps of one test: those of the member, and the checks at the worker. */
struct attack {
    void (*prepare)(tether_agent *worker, struct member_notice *notice); /* NULL: nothing */
    void (*run)(struct member *member);
    void (*check)(tether_agent *worker);
};

static Tether__RefId known_object; /* of the worker's, which the member knows */

static void run_attack(struct tether_test_rank *self, int rank, const struct attack *attack)
{
    struct member_notice *notice = member_notice(self->world);
    if (rank == WORKER) {
        struct member_group group;
        member_group_start(&group, notice);
        if (attack->prepare)
            attack->prepare(group.worker, notice);
        tether_test_mark(self->world, SERVING);
        tether_test_await_mark(self->world, ATTACKED, 1);
        attack->check(group.worker);
        tether_test_mark(self->world, CHECKED);
        member_group_end(&group);
    } else {
        struct member member;
        tether_test_await_mark(self->world, SERVING, 1);
        int silent = raw_listen(notice->silent_address);
        assert_true(member_join(&member, notice, "eve", MEMBER_START));
        known_object = member_id(notice->object[2]);
        known_object.creator = (uint32_t)notice->object[0];
        known_object.incarnation = notice->object[1];
        attack->run(&member);
        tether_test_mark(self->world, ATTACKED);
        tether_test_await_mark(self->world, CHECKED, 1);
        close(member.fd);
        close(silent);
    }
}

#define ATTACK(name, ...)                                            \
    TETHER_PROC_TEST(name, .ranks = N_RANKS)                         \
    {                                                                \
        run_attack(self, rank, &(const struct attack){__VA_ARGS__}); \
    }

/* All frames before have been handled when this is answered. */
static void await_handled(struct member *member)
{
    member_call(member, UINT32_MAX, "echo", NULL, 0);
    assert_int_equal(member_await_reply(member, UINT32_MAX), TETHER_OK);
}

static size_t n_references(tether_agent *agent)
{
    struct tether_rref_counts counts = tether_rref_counts(agent);
    return counts.pending_users + counts.confirmed_users + counts.broken_users;
}

/* ---- References beyond the limit ---- */

static void send_too_many_refs(struct member *member)
{
    struct member_refs refs;
    member_refs_init(&refs, 8000, "eve", 1); /* taken at once if at all: its owner sends them */
    member_call(member, 1, "echo", refs.pointers, refs.n);
    member_refs_fini(&refs);
    assert_int_equal(member_await_reply(member, 1), -1);
}

static void expect_no_reference(tether_agent *worker)
{
    assert_int_equal(n_references(worker), 0);
}

ATTACK(worker_takes_no_reference_when_call_carries_too_many,
       .run = send_too_many_refs,
       .check = expect_no_reference)

/* ---- References whose owner never answers ---- */

static void send_calls_with_refs(struct member *member,
                                 uint64_t n,
                                 const char *function,
                                 const char *owner)
{
    for (uint64_t i = 0; i < n; i++) {
        struct member_refs refs;
        member_refs_init(&refs, MAX_REFS, owner, 1 + i * MAX_REFS);
        member_call(member, 1 + i, function, refs.pointers, refs.n);
        member_refs_fini(&refs);
    }
}

static void send_calls_with_unconfirmed_refs(struct member *member)
{
    send_calls_with_refs(member, N_FEW, "echo", "mallory");
    await_handled(member);
}

static void send_unasked_replies(struct member *member)
{
    for (uint64_t i = 0; i < N_FEW; i++) {
        struct member_refs refs;
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__Reply message = TETHER__REPLY__INIT;
        member_refs_init(&refs, MAX_REFS, "mallory", 1 + i * MAX_REFS);
        frame.body_case = TETHER__FRAME__BODY_REPLY;
        frame.reply = &message;
        message.id = 1 + i;
        message.ref = refs.pointers;
        message.n_ref = refs.n;
        member_send(member, &frame);
        member_refs_fini(&refs);
    }
    await_handled(member);
}

static void expect_few_unconfirmed(tether_agent *worker)
{
    size_t n = n_references(worker);
    print_message("%zu references wait to be confirmed\n", n);
    assert_in_range(n, 1, MEMBER_MAX_BYTES / 1024);
}

ATTACK(unconfirmed_references_are_bounded_when_member_floods_calls,
       .run = send_calls_with_unconfirmed_refs,
       .check = expect_few_unconfirmed)

ATTACK(unconfirmed_references_are_bounded_when_replies_were_not_asked_for,
       .run = send_unasked_replies,
       .check = expect_few_unconfirmed)

/* ---- References of calls that wait for a thread ---- */

static void send_calls_that_wait_for_a_thread(struct member *member)
{
    send_calls_with_refs(member, N_MANY, "hold", "eve");
    member_await_hangup(member); /* too many messages owed to it */
}

static void expect_few_queued(tether_agent *worker)
{
    size_t n = n_references(worker);
    print_message("%zu references are in calls that wait for a thread\n", n);
    assert_in_range(n, MAX_REFS, 4 * MEMBER_MAX_BYTES / 512 + MAX_REFS);
}

ATTACK(references_of_queued_calls_are_bounded_when_member_floods,
       .run = send_calls_that_wait_for_a_thread,
       .check = expect_few_queued)

/* ---- Messages that the worker owes for references, and that the member does not take ---- */

static void have_accepts_owed(struct member *member)
{
    send_calls_with_refs(member, N_MANY, "drop", "w"); /* there are no such objects */
    member_await_hangup(member);
}

static void have_deletes_owed(struct member *member)
{
    send_calls_with_refs(member, N_MANY, "drop", "eve");
    member_await_hangup(member);
}

static void expect_few_owed(tether_agent *worker)
{
    size_t n = tether_rref_counts(worker).pending_futures;
    print_message("%zu messages are owed\n", n);
    assert_in_range(n, 1, MEMBER_MAX_BYTES / 128 + MAX_REFS);
}

ATTACK(owed_accepts_are_bounded_when_member_takes_none,
       .run = have_accepts_owed,
       .check = expect_few_owed)

ATTACK(owed_deletes_are_bounded_when_member_takes_none,
       .run = have_deletes_owed,
       .check = expect_few_owed)

/* ---- Objects that are announced and never made ---- */

static void announce_objects(struct member *member)
{
    for (uint64_t i = 1; i <= 10000; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__Announce message = TETHER__ANNOUNCE__INIT;
        Tether__RefId object = member_id(2 * i), fork = member_id(2 * i + 1);
        frame.body_case = TETHER__FRAME__BODY_ANNOUNCE;
        frame.announce = &message;
        message.result = &object;
        message.result_fork = &fork;
        member_send(member, &frame);
    }
    await_handled(member);
}

static void expect_few_owners(tether_agent *worker)
{
    assert_in_range(tether_rref_counts(worker).owners, 1, 2 * MAX_CALLS);
}

ATTACK(announced_objects_are_bounded_when_they_never_come,
       .run = announce_objects,
       .check = expect_few_owners)

/* ---- Requests about objects that never come ---- */

static void flood_requests(struct member *member, bool fetches)
{
    for (uint64_t i = 1; i <= 5000; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__Fetch fetch = TETHER__FETCH__INIT;
        Tether__ForkRequest request = TETHER__FORK_REQUEST__INIT;
        Tether__RefId object = member_id(i), fork = member_id(1000000 + i);
        object.incarnation =
            MEMBER_START + 1 + (uint32_t)i; /* of starts that the worker has not met */
        frame.body_case = fetches ? TETHER__FRAME__BODY_FETCH : TETHER__FRAME__BODY_FORK_REQUEST;
        if (fetches)
            frame.fetch = &fetch;
        else
            frame.fork_request = &request;
        fetch.id = request.id = i;
        fetch.object = request.object = &object;
        request.fork = &fork;
        member_send(member, &frame);
    }
    assert_int_equal(member_await_reply(member, 5000), TETHER_EBUSY);
}

static void flood_fetches(struct member *member)
{
    flood_requests(member, true);
}

static void flood_fork_requests(struct member *member)
{
    flood_requests(member, false);
}

static void expect_few_waiting(tether_agent *worker)
{
    assert_in_range(tether_rref_counts(worker).pending_owners, 1, 2 * MAX_CALLS);
}

ATTACK(waiting_fetches_are_bounded_when_member_floods,
       .run = flood_fetches,
       .check = expect_few_waiting)

ATTACK(waiting_fork_requests_are_bounded_when_member_floods,
       .run = flood_fork_requests,
       .check = expect_few_waiting)

/* ---- Ids that the worker is about to give ---- */

static tether_rref *owned;

static void pass_on(tether_agent *worker)
{
    tether_error err = {0};
    tether_value *arg;
    assert_int_equal(tether_value_new(tether_bytes_of("x", 1), &arg, NULL), TETHER_OK);
    assert_int_equal(tether_value_attach(arg, owned, NULL), TETHER_OK);
    if (tether_rpc_sync(worker, "friend", "echo", arg, TETHER_TEST_LIMIT_MS, NULL, &err))
        fail_msg("%s", err.message);
    tether_value_release(arg);
}

static void make_object(tether_agent *worker, struct member_notice *notice)
{
    tether_value *value;
    assert_int_equal(tether_value_new(tether_bytes_of("x", 1), &value, NULL), TETHER_OK);
    assert_int_equal(tether_rref_new(worker, value, &owned, NULL), TETHER_OK);
    tether_value_release(value);
    tether__id_to_numbers(owned->id, notice->object);
    pass_on(worker); /* from now on others may ask for it */
}

static void take_next_ids(struct member *member)
{
    for (uint64_t i = 1; i <= 100; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__ForkRequest request = TETHER__FORK_REQUEST__INIT;
        Tether__RefId fork = known_object;
        fork.counter += i;
        frame.body_case = TETHER__FRAME__BODY_FORK_REQUEST;
        frame.fork_request = &request;
        request.id = i;
        request.object = &known_object;
        request.fork = &fork;
        member_send(member, &frame);
        assert_int_equal(member_await_reply(member, i), TETHER_OK);
    }
}

static void expect_reference_is_passed_on(tether_agent *worker)
{
    pass_on(worker);
    tether_rref_release(owned);
}

ATTACK(reference_is_passed_on_when_member_has_used_its_next_ids,
       .prepare = make_object,
       .run = take_next_ids,
       .check = expect_reference_is_passed_on)

/* ---- Names of workers that do not exist ---- */

#define N_NAMES 10000

static void name_owners(struct member *member)
{
    for (uint64_t i = 0; i < N_NAMES; i++) {
        struct member_refs refs;
        char owner[32];
        snprintf(owner, sizeof owner, "nobody%d", (int)i);
        member_refs_init(&refs, 1, owner, 1 + i);
        member_call(member, 1 + i, "drop", refs.pointers, refs.n);
        member_refs_fini(&refs);
    }
    await_handled(member);
}

static void name_parents(struct member *member)
{
    for (uint64_t i = 1; i <= N_NAMES; i++) {
        char parent[32];
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__ForkRequest request = TETHER__FORK_REQUEST__INIT;
        Tether__RefId object = member_id(i), fork = member_id(1000000 + i);
        snprintf(parent, sizeof parent, "nobody%d", (int)i);
        frame.body_case = TETHER__FRAME__BODY_FORK_REQUEST;
        frame.fork_request = &request;
        request.id = i;
        request.object = &object;
        request.fork = &fork;
        request.parent = parent;
        request.timeout_ms = 1; /* so that the limit of waiting requests does not come first */
        member_send(member, &frame);
    }
    await_handled(member);
}

static void expect_few_peers(tether_agent *worker)
{
    tether_buf metrics = TETHER_BUF_INIT;
    pthread_mutex_lock(&worker->mu);
    size_t n = worker->n_peers;
    pthread_mutex_unlock(&worker->mu);
    print_message("the worker has %zu peers\n", n);
    assert_in_range(n, 1, TETHER__MAX_NAMES_PER_PEER + 4);
    assert_int_equal(tether_agent_metrics(worker, &metrics), TETHER_OK);
    assert_null(strstr(metrics.data, "nobody"));
    tether_buf_fini(&metrics);
}

ATTACK(peers_are_bounded_when_member_names_owners, .run = name_owners, .check = expect_few_peers)
ATTACK(peers_are_bounded_when_member_names_parents, .run = name_parents, .check = expect_few_peers)

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_takes_no_reference_when_call_carries_too_many),
        cmocka_unit_test(unconfirmed_references_are_bounded_when_member_floods_calls),
        cmocka_unit_test(unconfirmed_references_are_bounded_when_replies_were_not_asked_for),
        cmocka_unit_test(references_of_queued_calls_are_bounded_when_member_floods),
        cmocka_unit_test(owed_accepts_are_bounded_when_member_takes_none),
        cmocka_unit_test(owed_deletes_are_bounded_when_member_takes_none),
        cmocka_unit_test(announced_objects_are_bounded_when_they_never_come),
        cmocka_unit_test(waiting_fetches_are_bounded_when_member_floods),
        cmocka_unit_test(waiting_fork_requests_are_bounded_when_member_floods),
        cmocka_unit_test(reference_is_passed_on_when_member_has_used_its_next_ids),
        cmocka_unit_test(peers_are_bounded_when_member_names_owners),
        cmocka_unit_test(peers_are_bounded_when_member_names_parents),
    };
    return cmocka_run_group_tests_name("hostile_member", tests, NULL, NULL);
}
