/* A member of the group whose streams are hostile: it says hello under thousands of names, dials
 * again and again, asks and does not read. It is a process of its own with a plain socket
 * (member.h). The worker keeps to its limits, hangs up on the member, and its group goes on
 * calling. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "rpc/agent/internal.h"
#include "rpc/peer/peer.h"
#include "rpc/peer/session.h"
#include "tests/lib/cmocka.h"
#include "tests/rref/hostile/attack.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* ---- Many names ---- */

#define N_NAMES 10000
#define MAX_UNLISTED 256 /* docs/security.md */

static void say_hello_under_many_names(const struct member_notice *notice)
{
    int n_joined = 0;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < N_NAMES; i++) {
        struct member member;
        char name[32];
        snprintf(name, sizeof name, "eve%d", i);
        n_joined += member_join(&member, notice, name, MEMBER_START + (uint64_t)i);
    }
    print_message("%d of %d names got in\n", n_joined, N_NAMES);
    assert_int_equal(n_joined, MAX_UNLISTED - 1); /* one place is the friend's */
}

/* A worker that the directory knows gets in all the same. */
static void expect_few_names(struct member_group *group)
{
    tether_error err = {0};
    pthread_mutex_lock(&group->worker->mu);
    size_t n_peers = group->worker->n_peers;
    pthread_mutex_unlock(&group->worker->mu);
    int opened = attack_new_descriptors();
    print_message("the worker has %zu peers, %d descriptors more and grew by %ld kB\n", n_peers,
                  opened, attack_grown_kb());
    assert_in_range(n_peers, MAX_UNLISTED, MAX_UNLISTED + 4);
    assert_in_range(opened, MAX_UNLISTED - 1, MAX_UNLISTED + 128); /* 128 handshakes */
    tether_agent *late = member_group_agent(group, "late");
    if (tether_rpc_sync(late, "w", "echo", NULL, LIMIT, NULL, &err))
        fail_msg("a worker of the group cannot call: %s", err.message);
    tether_agent_release(late);
}

ATTACK(peers_are_bounded_when_member_says_hello_under_many_names,
       .run = say_hello_under_many_names,
       .check = expect_few_names)

/* ---- Many streams ---- */

#define N_STREAMS 500

static void dial_again_and_again(const struct member_notice *notice)
{
    for (uint64_t i = 1; i <= N_STREAMS; i++) {
        struct member member;
        assert_true(member_join_again(&member, notice, "eve", MEMBER_START, i));
    }
}

static void expect_few_descriptors(struct member_group *group)
{
    (void)group;
    assert_eventually(attack_new_descriptors() <= 8);
}

ATTACK(descriptors_are_bounded_when_member_dials_many_streams,
       .run = dial_again_and_again,
       .check = expect_few_descriptors)

/* ---- Arguments of calls that wait for a thread ---- */

static void queue_arguments(const struct member_notice *notice)
{
    static uint8_t bytes[64 * 1024];
    struct member member;
    assert_true(member_join(&member, notice, "eve", MEMBER_START));
    for (uint64_t i = 1; i <= 1000; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__Call call = TETHER__CALL__INIT;
        frame.body_case = TETHER__FRAME__BODY_CALL;
        frame.call = &call;
        frame.payload.data = bytes;
        frame.payload.len = sizeof bytes;
        call.id = i;
        call.function = (char *)"hold";
        member_send(&member, &frame);
    }
    assert_int_equal(member_await_reply(&member, 1000), TETHER_EBUSY);
}

static void expect_few_arguments(struct member_group *group)
{
    struct tether__peer *eve = tether__agent_find_peer(group->worker, "eve");
    assert_non_null(eve);
    tether__peer_lock(eve);
    size_t held = eve->session->held_bytes;
    tether__peer_unlock(eve);
    tether__peer_release(eve);
    print_message("%zu bytes of arguments are held\n", held);
    assert_in_range(held, 1, 4 * MEMBER_MAX_BYTES);
}

ATTACK(queued_arguments_are_bounded_when_member_floods,
       .run = queue_arguments,
       .check = expect_few_arguments)

/* ---- Replies that are not read ---- */

#define MAX_UNREAD (3 * MEMBER_MAX_BYTES + MEMBER_MAX_MESSAGE)

static void ask_and_not_read(const struct member_notice *notice)
{
    struct member member;
    assert_true(member_join(&member, notice, "eve", MEMBER_START));
    for (uint64_t i = 1; i <= 100000; i++)
        member_call(&member, i, "big", NULL, 0);
    member_await_hangup(&member);
}

static uint64_t n_fences(tether_agent *agent, const char *peer)
{
    char row[128];
    tether_buf metrics = TETHER_BUF_INIT;
    snprintf(row, sizeof row, "tether_peer_fences_total{peer=\"%s\"} ", peer);
    assert_int_equal(tether_agent_metrics(agent, &metrics), TETHER_OK);
    const char *at = strstr(metrics.data, row);
    uint64_t n = at ? strtoull(at + strlen(row), NULL, 10) : 0;
    tether_buf_fini(&metrics);
    return n;
}

static void expect_fence(struct member_group *group)
{
    long grown = attack_grown_kb();
    print_message("the worker grew by %ld kB\n", grown);
    assert_in_range(n_fences(group->worker, "eve"), 1, 1);
    /* Sanitizers keep memory that was freed. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_in_range(grown, 0, 3 * MAX_UNREAD / 1024);
#endif
}

ATTACK(member_is_fenced_when_it_asks_and_does_not_read,
       .run = ask_and_not_read,
       .check = expect_fence)

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_are_bounded_when_member_says_hello_under_many_names),
        cmocka_unit_test(descriptors_are_bounded_when_member_dials_many_streams),
        cmocka_unit_test(queued_arguments_are_bounded_when_member_floods),
        cmocka_unit_test(member_is_fenced_when_it_asks_and_does_not_read),
    };
    return cmocka_run_group_tests_name("hostile_stream", tests, NULL, NULL);
}
