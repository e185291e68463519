/* A member of the group, and a worker that is called, whose text is hostile: names of functions and
 * types, sites, errors, and the reason of a refusal clear a screen, forge lines and are not UTF-8.
 * Both are one process with plain sockets (member.h). The worker escapes such text in its errors,
 * log, metrics and dumps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "rpc/peer/calls/slots.h"
#include "rref/rref.h"
#include "tests/lib/cmocka.h"
#include "tests/rpc/lib/raw_socket.h"
#include "tests/rref/hostile/member.h"

#define LIMIT TETHER_TEST_LIMIT_MS

/* Clears a screen, sets its title, forges a line, ends a string; DEL, C1, and not UTF-8. */
#define EVIL "\033[2J\033]0;owned\a\r\n\"}, \\ forged 1\n\177\302\233\377"

enum { SERVING, SPOKEN, ANSWERED, REFUSED, CALLED };
enum { WORKER, MEMBER, N_RANKS };

static _Atomic int n_logged, n_unclean;

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)level, (void)area;
    n_logged++;
    if (!tether__text_is_clean(message, strlen(message)))
        n_unclean++;
}

static void expect_clean(const char *text)
{
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        if (!tether__text_is_clean(line, len))
            fail_msg("not clean: %.*s", (int)len, line);
        line += len + (line[len] == '\n');
    }
}

static void expect_escaped(const tether_error *err)
{
    print_message("%s\n", err->message);
    expect_clean(err->message);
    assert_null(strchr(err->message, '\n'));
    assert_non_null(strstr(err->message, "\\x1b[2J"));
}

/* ---- The worker ---- */

static void run_worker(struct tether_test_world *world, tether_agent *worker)
{
    tether_error err = {0};
    tether_buf text = TETHER_BUF_INIT;
    tether_test_await_mark(world, SPOKEN, 1);
    for (int json = 0; json < 2; json++) {
        assert_int_equal(tether_rref_dump(worker, json, &text), TETHER_OK);
        expect_clean(text.data);
        assert_non_null(strstr(text.data, json ? "\\u001b[2J" : "\\x1b[2J")); /* the site */
    }
    /* The first call is answered with an error; then the connection ends, and the next one is
     * refused with a reason. */
    tether_status st = tether_rpc_sync(worker, "mallory", "f", NULL, LIMIT, NULL, &err);
    if (st != TETHER_EREMOTE)
        fail_msg("%s: %s", tether_status_name(st), err.message);
    expect_escaped(&err);
    tether_test_mark(world, ANSWERED);
    tether_test_await_mark(world, REFUSED, 1);
    st = tether_rpc_sync(worker, "mallory", "f", NULL, 1000, NULL, &err);
    assert_int_not_equal(st, TETHER_OK);
    expect_escaped(&err);
    assert_int_equal(tether_agent_metrics(worker, &text), TETHER_OK);
    expect_clean(text.data);
    assert_null(strstr(text.data, "forged"));
    assert_true(n_logged > 0);
    assert_int_equal(n_unclean, 0);
    tether_buf_fini(&text);
    tether_test_mark(world, CALLED);
}

/* ---- The member ---- */

/* Announces an object with a site, passes on a reference with a type, calls a function. */
static void speak(const struct member_notice *notice, struct member *member)
{
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__Announce announce = TETHER__ANNOUNCE__INIT;
    Tether__RefId object = member_id(1), fork = member_id(2);
    struct member_refs refs;
    assert_true(member_join(member, notice, "eve", MEMBER_START));
    frame.body_case = TETHER__FRAME__BODY_ANNOUNCE;
    frame.announce = &announce;
    announce.result = &object;
    announce.result_fork = &fork;
    announce.site = (char *)EVIL ".c:1";
    member_send(member, &frame);
    member_refs_init(&refs, 1, "eve", 100);
    refs.refs[0].type = (char *)EVIL;
    member_call(member, 1, "hold", refs.pointers, 1);
    member_refs_fini(&refs);
    member_call(member, 2, EVIL, NULL, 0);
    assert_int_equal(member_await_reply(member, 2), TETHER_ENOTFOUND);
}

/* Takes the worker's connection in as the worker "mallory", and reads its first message. */
static Tether__Batch *take_in(struct member *member,
                              int listener,
                              const struct member_notice *notice)
{
    const uint8_t nonce[TETHER__NONCE_SIZE] = {9};
    *member = (struct member){.fd = accept(listener, NULL, NULL)};
    assert_true(member->fd >= 0);
    member->self = (struct tether__self){.group = "tether",
                                         .run = notice->run,
                                         .name = "mallory",
                                         .token = MEMBER_TOKEN,
                                         .incarnation = MEMBER_START - 1};
    tether__handshake_init(&member->handshake, &member->self, false, "", nonce);
    Tether__Batch *batch = member_read(member);
    assert_non_null(batch);
    assert_int_equal(batch->frame[0]->body_case, TETHER__FRAME__BODY_HELLO1);
    return batch;
}

static void refuse_with_text(int listener, const struct member_notice *notice)
{
    struct member member;
    Tether__Hello2 answer;
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__Batch *batch = take_in(&member, listener, notice);
    assert_int_equal(
        tether__handshake_on_hello1(&member.handshake, batch->frame[0]->hello1, &answer, NULL),
        TETHER_OK);
    answer.refused = TETHER_EPERM;
    answer.reason = (char *)EVIL;
    frame.body_case = TETHER__FRAME__BODY_HELLO2;
    frame.hello2 = &answer;
    member_send_batch(&member, (Tether__Frame *[]){&frame}, 1);
    tether__batch__free_unpacked(batch, NULL);
    member_await_hangup(&member);
    close(member.fd);
}

/* Finishes a handshake, and answers the worker's call with text. Returns the socket. */
static int answer_with_text(int listener, const struct member_notice *notice)
{
    struct member member;
    Tether__Hello2 hello2;
    Tether__Frame frame = TETHER__FRAME__INIT;
    Tether__State state = TETHER__STATE__INIT;
    Tether__Reply reply = TETHER__REPLY__INIT;
    Tether__Batch *batch = take_in(&member, listener, notice);
    assert_int_equal(
        tether__handshake_on_hello1(&member.handshake, batch->frame[0]->hello1, &hello2, NULL),
        TETHER_OK);
    tether__batch__free_unpacked(batch, NULL);
    frame.body_case = TETHER__FRAME__BODY_HELLO2;
    frame.hello2 = &hello2;
    member_send_batch(&member, (Tether__Frame *[]){&frame}, 1);
    batch = member_read(&member);
    assert_non_null(batch);
    assert_int_equal(batch->frame[0]->body_case, TETHER__FRAME__BODY_HELLO3);
    tether__batch__free_unpacked(batch, NULL);
    state.from_id = MEMBER_SILENT_ID;
    state.from_incarnation = member.self.incarnation;
    state.to_incarnation = notice->incarnation;
    state.lease_ms = 30000;
    frame.body_case = TETHER__FRAME__BODY_STATE;
    frame.state = &state;
    member_send_batch(&member, (Tether__Frame *[]){&frame}, 1);
    reply.status = TETHER_EREMOTE;
    reply.error = reply.type = reply.result_type = (char *)EVIL;
    for (bool answered = false; !answered && (batch = member_read(&member));) {
        for (size_t i = 0; i < batch->n_frame; i++) {
            if (batch->frame[i]->body_case != TETHER__FRAME__BODY_CALL)
                continue;
            reply.id = batch->frame[i]->call->id;
            frame.body_case = TETHER__FRAME__BODY_REPLY;
            frame.reply = &reply;
            member_send(&member, &frame);
            answered = true;
        }
        tether__batch__free_unpacked(batch, NULL);
    }
    return member.fd;
}

TETHER_PROC_TEST(hostile_text_is_escaped_when_member_sends_it, .ranks = N_RANKS)
{
    struct member_notice *notice = member_notice(self->world);
    if (rank == WORKER) {
        struct member_group group;
        tether_set_log(TETHER_LOG_TRACE, on_log, NULL);
        member_group_start(&group, notice);
        tether_test_mark(self->world, SERVING);
        run_worker(self->world, group.worker);
        member_group_end(&group);
        tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    } else {
        struct member eve;
        tether_test_await_mark(self->world, SERVING, 1);
        int listener = raw_listen(notice->silent_address);
        speak(notice, &eve);
        tether_test_mark(self->world, SPOKEN);
        int answered = answer_with_text(listener, notice);
        tether_test_await_mark(self->world, ANSWERED, 1);
        close(answered);
        refuse_with_text(listener, notice);
        tether_test_mark(self->world, REFUSED);
        tether_test_await_mark(self->world, CALLED, 1);
        close(eve.fd);
        close(listener);
    }
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_text_is_escaped_when_member_sends_it),
    };
    return cmocka_run_group_tests_name("hostile_text", tests, NULL, NULL);
}
