/* A member of the group that lies about starts: its own, that of the worker, or as an observer. It
 * takes the number of another worker and uses up its ids, names huge numbers, comes back again and
 * again, and says that the worker was replaced. It is a process of its own with a plain socket
 * (member.h). No other worker of the group is harmed. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/log_limit.h"
#include "rpc/group/group.h"
#include "rref/context.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rref/hostile/member.h"

#define LIMIT TETHER_TEST_LIMIT_MS

enum { SERVING, ATTACKED, CHECKED };
enum { WORKER, MEMBER, N_RANKS };

struct attack {
    void (*run)(const struct member_notice *notice);
    void (*check)(struct member_group *group); /* while the member is still there */
};

static int64_t started_at;
static atomic_int n_rejections_logged, n_fences_logged;

static void count_lines(void *userdata,
                        tether_log_level level,
                        const char *area,
                        const char *message)
{
    (void)userdata, (void)level, (void)area;
    if (strstr(message, "refused a stream"))
        atomic_fetch_add(&n_rejections_logged, 1);
    if (strstr(message, "fencing"))
        atomic_fetch_add(&n_fences_logged, 1);
}

static void run_attack(struct tether_test_rank *self, int rank, const struct attack *attack)
{
    struct member_notice *notice = member_notice(self->world);
    if (rank == WORKER) {
        struct member_group group;
        started_at = tether__clock_now_ns(&tether__clock_system);
        tether_set_log(TETHER_LOG_INFO, count_lines, NULL);
        member_group_start(&group, notice);
        tether_test_mark(self->world, SERVING);
        tether_test_await_mark(self->world, ATTACKED, 1);
        attack->check(&group);
        tether_test_mark(self->world, CHECKED);
        member_group_end(&group);
        tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    } else {
        tether_test_await_mark(self->world, SERVING, 1);
        attack->run(notice);
        tether_test_mark(self->world, ATTACKED);
        tether_test_await_mark(self->world, CHECKED, 1); /* its sockets are open until then */
    }
}

#define ATTACK(name, ...)                                            \
    TETHER_PROC_TEST(name, .ranks = N_RANKS)                         \
    {                                                                \
        run_attack(self, rank, &(const struct attack){__VA_ARGS__}); \
    }

/* ---- The number of another worker ---- */

#define N_IDS 150 /* the worker takes no more announcements at once */

static void announce(struct member *member, Tether__RefId id)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__Announce message = TETHER__ANNOUNCE__INIT;
    Tether__RefId fork = id;
    fork.counter += 1000000;
    frame.body_case = TETHER__FRAME__BODY_ANNOUNCE;
    frame.announce = &message;
    message.result = &id;
    message.result_fork = &fork;
    member_send(member, &frame);
}

/* Announces objects under the ids that start `start` of a worker is about to draw. */
static void announce_ids_of(struct member *member, uint32_t creator, uint64_t start)
{
    for (uint64_t i = 1; i <= N_IDS; i++) {
        Tether__RefId id = TETHER__REF_ID__INIT;
        id.creator = creator;
        id.incarnation = start;
        id.counter = i;
        announce(member, id);
    }
    member_call(member, UINT32_MAX, "echo", NULL, 0);
    member_await_reply(member, UINT32_MAX); /* or the worker closes the connection */
}

static void take_ids_of_friend(const struct member_notice *notice)
{
    struct member member;
    if (member_join(&member, notice, "eve", notice->last_start))
        announce_ids_of(&member, notice->friend_id, notice->last_start);
    else
        print_message("the member was not let in\n");
}

static void expect_object_of(struct member_group *group, tether_agent *creator)
{
    tether_error err = {0};
    tether_value *value = NULL;
    tether_rref *rref = tether_remote(creator, "w", "echo", NULL, LIMIT);
    (void)group;
    if (tether_rref_to_here(rref, LIMIT, &value, &err) != TETHER_OK)
        fail_msg("a worker of the group cannot make an object: %s", err.message);
    tether_value_release(value);
    tether_rref_release(rref);
}

static void expect_object_of_friend(struct member_group *group)
{
    expect_object_of(group, group->friend);
}

ATTACK(member_is_refused_when_it_names_the_start_of_another_worker,
       .run = take_ids_of_friend,
       .check = expect_object_of_friend)

static void take_ids_of_newcomer(const struct member_notice *notice)
{
    struct member member;
    uint64_t next = notice->last_start + 1;
    assert_true(member_join(&member, notice, "eve", next));
    announce_ids_of(&member, TETHER__FIRST_DYNAMIC_ID + (uint32_t)next, next);
}

/* The next start is this one: the directory says so. */
static void expect_object_of_newcomer(struct member_group *group)
{
    tether_agent *late = member_group_agent(group, "late");
    assert_int_equal(late->self.incarnation, group->friend->self.incarnation + 1);
    expect_object_of(group, late);
    tether_agent_release(late);
}

ATTACK(member_loses_start_number_when_directory_gives_it_to_another_worker,
       .run = take_ids_of_newcomer,
       .check = expect_object_of_newcomer)

static void name_own_start_of_worker(const struct member_notice *notice)
{
    struct member member;
    assert_false(member_join(&member, notice, "eve", notice->incarnation));
}

ATTACK(member_is_refused_when_it_names_the_start_of_the_worker,
       .run = name_own_start_of_worker,
       .check = expect_object_of_friend)

/* ---- References to objects of the worker, under ids of another one ---- */

static void pass_on_ids_of_friend(const struct member_notice *notice)
{
    struct member member;
    struct member_refs refs;
    assert_true(member_join(&member, notice, "eve", MEMBER_START));
    member_refs_init(&refs, N_IDS, "w", 1);
    for (size_t i = 0; i < refs.n; i++) {
        refs.ids[i].creator = notice->friend_id;
        refs.ids[i].incarnation = notice->last_start;
    }
    member_call(&member, 1, "hold", refs.pointers, refs.n); /* it holds them */
    member_call(&member, 2, "echo", NULL, 0);
    assert_int_equal(member_await_reply(&member, 2), TETHER_OK);
    member_refs_fini(&refs);
}

ATTACK(ids_stay_reserved_for_their_creator_when_member_passes_them_on,
       .run = pass_on_ids_of_friend,
       .check = expect_object_of_friend)

/* ---- Huge numbers ---- */

static void name_huge_starts(const struct member_notice *notice)
{
    struct member member;
    assert_false(member_join(&member, notice, "eve", UINT64_C(1) << 60));
    assert_false(member_join(&member, notice, "eve", UINT64_C(1) << 32 | notice->last_start));
    assert_true(member_join(&member, notice, "eve", UINT32_MAX));
}

/* The store loses its keys, and the worker puts them back: starts go on. */
static void expect_newcomer_after_store_loss(struct member_group *group)
{
    tether_store *store = group->worker->directory.store;
    assert_int_equal(tether_store_delete(store, "starts", LIMIT, NULL, NULL), TETHER_OK);
    assert_int_equal(tether_store_delete(store, "run", LIMIT, NULL, NULL), TETHER_OK);
    tether__agent_store_check_at(group->worker, tether__clock_now_ns(&tether__clock_system));
    assert_int_equal(tether_store_wait(store, (const char *[]){"run"}, 1, LIMIT, NULL), TETHER_OK);
    tether_agent_release(member_group_agent(group, "late"));
}

ATTACK(workers_can_start_when_member_has_named_huge_starts,
       .run = name_huge_starts,
       .check = expect_newcomer_after_store_loss)

/* ---- "You have been replaced" ---- */

static void say_that_worker_was_replaced(const struct member_notice *notice)
{
    struct member member;
    uint64_t later = notice->incarnation + 1;
    assert_false(member_join_to(&member, notice, "eve", MEMBER_START, 1, later));
    for (int i = 0; i < 2; i++) {
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__State state = TETHER__STATE__INIT;
        assert_true(member_join(&member, notice, "eve", MEMBER_START + 1 + (uint64_t)i));
        frame.body_case = TETHER__FRAME__BODY_STATE;
        frame.state = &state;
        state.from_incarnation = member.self.incarnation;
        state.to_incarnation = later;
        state.refused = i ? TETHER_EFENCED : 0;
        state.reason = (char *)"replaced";
        member_send_batch(&member, (Tether__Frame *[]){&frame}, 1);
        member_await_hangup(&member);
        close(member.fd);
    }
}

static void expect_worker_not_replaced(struct member_group *group)
{
    assert_eventually(atomic_load(&group->worker->confirming) == 0); /* it has asked */
    assert_false(atomic_load(&group->worker->replaced));
}

ATTACK(worker_is_not_replaced_when_member_claims_it,
       .run = say_that_worker_was_replaced,
       .check = expect_worker_not_replaced)

/* ---- Observers ---- */

static void take_all_places_of_observers(const struct member_notice *notice)
{
    struct member member;
    char name[64];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "observer:eve.%d", i);
        if (member_join(&member, notice, name, UINT64_MAX - (uint64_t)i))
            close(member.fd);
    }
}

static void expect_place_for_observer(struct member_group *group)
{
    struct member member;
    struct member_notice notice = {.unix_address = ""};
    member_notice_fill(&notice, group->worker);
    bool joined = false;
    int64_t until = tether__deadline_in(&tether__clock_system, LIMIT);
    while (!(joined = member_join(&member, &notice, "observer:person.1", 5)) &&
           tether__clock_now_ns(&tether__clock_system) < until)
        tether_test_nap(1); /* the worker has yet to see that the conns have gone */
    assert_true(joined);
    member_call(&member, 1, "echo", NULL, 0);
    assert_int_equal(member_await_reply(&member, 1), TETHER_OK);
    close(member.fd);
}

ATTACK(observer_is_accepted_when_members_have_named_huge_starts,
       .run = take_all_places_of_observers,
       .check = expect_place_for_observer)

/* ---- Start after start ---- */

#define N_STARTS 2000

static void start_again_and_again(const struct member_notice *notice)
{
    for (uint64_t i = 0; i < N_STARTS; i++) {
        struct member member;
        Tether__RefId id = TETHER__REF_ID__INIT;
        assert_true(member_join(&member, notice, "eve", MEMBER_START + i));
        id.creator = 7;
        id.incarnation = MEMBER_START + i;
        id.counter = 1;
        announce(&member, id);
        member_call(&member, 1, "echo", NULL, 0);
        assert_int_equal(member_await_reply(&member, 1), TETHER_OK);
        close(member.fd);
    }
}

static void expect_few_watermarks(struct member_group *group)
{
    struct tether__refs *refs = tether__refs_of(group->worker);
    pthread_mutex_lock(&refs->mu);
    size_t n = tether__map_count(&refs->watermarks);
    pthread_mutex_unlock(&refs->mu);
    print_message("%zu watermarks\n", n);
    assert_in_range(n, 1, 1024 + 3); /* docs/security.md, and one for each peer */
    expect_object_of_friend(group);
}

ATTACK(watermarks_are_bounded_when_member_starts_again_and_again,
       .run = start_again_and_again,
       .check = expect_few_watermarks)

/* ---- Lines in the log ---- */

static void have_streams_refused_and_sessions_fenced(const struct member_notice *notice)
{
    for (uint64_t i = 0; i < 100; i++) {
        struct member member;
        Tether__Frame frame = TETHER__FRAME__INIT;
        Tether__State state = TETHER__STATE__INIT;
        Tether__UserDelete unreadable = TETHER__USER_DELETE__INIT;
        Tether__RefIds ids = TETHER__REF_IDS__INIT;
        while (!member_join(&member, notice, "eve", MEMBER_START + i))
            tether_test_nap(1); /* a message of the stream before is still being handled */
        frame.body_case = TETHER__FRAME__BODY_STATE;
        frame.state = &state;
        state.from_incarnation = member.self.incarnation + 1;
        if (i % 2) {
            member_send_batch(&member, (Tether__Frame *[]){&frame}, 1);
        } else {
            uint32_t one = 1;
            uint64_t ones = 1;
            ids.creator = &one;
            ids.incarnation = ids.counter = &ones;
            ids.n_creator = ids.n_incarnation = ids.n_counter = 1;
            unreadable.object = &ids; /* without a fork for it */
            frame.body_case = TETHER__FRAME__BODY_USER_DELETE;
            frame.user_delete = &unreadable;
            member_send(&member, &frame);
        }
        member_await_hangup(&member);
        close(member.fd);
    }
}

static void expect_few_lines(struct member_group *group)
{
    (void)group;
    int64_t minutes =
        (tether__clock_now_ns(&tether__clock_system) - started_at) / TETHER__LOG_PAUSE_NS;
    assert_in_range(atomic_load(&n_rejections_logged), 1, 1 + minutes);
    assert_in_range(atomic_load(&n_fences_logged), 1, 1 + minutes);
}

ATTACK(log_has_one_line_when_member_has_itself_refused_and_fenced,
       .run = have_streams_refused_and_sessions_fenced,
       .check = expect_few_lines)

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(member_is_refused_when_it_names_the_start_of_another_worker),
        cmocka_unit_test(member_loses_start_number_when_directory_gives_it_to_another_worker),
        cmocka_unit_test(member_is_refused_when_it_names_the_start_of_the_worker),
        cmocka_unit_test(ids_stay_reserved_for_their_creator_when_member_passes_them_on),
        cmocka_unit_test(workers_can_start_when_member_has_named_huge_starts),
        cmocka_unit_test(worker_is_not_replaced_when_member_claims_it),
        cmocka_unit_test(observer_is_accepted_when_members_have_named_huge_starts),
        cmocka_unit_test(watermarks_are_bounded_when_member_starts_again_and_again),
        cmocka_unit_test(log_has_one_line_when_member_has_itself_refused_and_fenced),
    };
    return cmocka_run_group_tests_name("hostile_start", tests, NULL, NULL);
}
