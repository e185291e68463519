/* Clients that speak only gRPC: their calls with tokens, traces, errors and ends. The messages are
 * packed and unpacked by protobuf-c, which the transport itself does without. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/rpc/transport/grpc_plain.h"

/* The arguments that on_unary() of a test got, and the reply that it has to give. */
static struct {
    char function[64], token[64], peer[64];
    tether_trace trace;
    int64_t left_ns; /* until the deadline; TETHER__NEVER */
    tether_status admission, status;
    const char *error;
    struct tether__unary *held; /* not answered yet */
    struct tether_test_event came;
} seen;

static int set_up(void **state)
{
    plain_set_up(state);
    memset(&seen, 0, sizeof seen);
    tether_test_event_init(&seen.came);
    return 0;
}

static int tear_down(void **state)
{
    plain_tear_down(state);
    tether_test_event_fini(&seen.came);
    return 0;
}

static void copy_text(char *text, size_t size, tether_bytes bytes)
{
    snprintf(text, size, "%.*s", (int)bytes.len, (const char *)bytes.data);
}

/* sync_notes() makes the notes of one thread visible to another. The thread sanitizer cannot know
 * that the reply comes after the call. */
static pthread_mutex_t note_mu = PTHREAD_MUTEX_INITIALIZER;

static void note(struct tether__unary *unary)
{
    pthread_mutex_lock(&note_mu);
    copy_text(seen.function, sizeof seen.function, unary->function);
    snprintf(seen.peer, sizeof seen.peer, "%s", unary->peer);
    seen.trace = unary->trace;
    seen.left_ns = unary->deadline == TETHER__NEVER
                       ? TETHER__NEVER
                       : unary->deadline - tether__clock_now_ns(&tether__clock_system);
    assert_null(unary->cert_names);
    pthread_mutex_unlock(&note_mu);
}

static void sync_notes(void)
{
    pthread_mutex_lock(&note_mu);
    pthread_mutex_unlock(&note_mu);
}

static tether_status note_token(tether_bytes token, tether_error *reterr)
{
    pthread_mutex_lock(&note_mu);
    copy_text(seen.token, sizeof seen.token, token);
    tether_status status = seen.admission;
    pthread_mutex_unlock(&note_mu);
    return status == TETHER_OK ? status : tether_error_set(reterr, status, "not admitted");
}

static void note_and_echo(struct tether__unary *unary)
{
    note(unary);
    pthread_mutex_lock(&note_mu);
    tether_status status = seen.status;
    const char *error = seen.error;
    pthread_mutex_unlock(&note_mu);
    unary->reply(unary, status, error, tether__slice_retain(unary->payload));
}

static void note_and_hold(struct tether__unary *unary)
{
    note(unary);
    seen.held = unary;
    tether_test_event_signal(&seen.came);
}

static void call(struct fixture *fixture,
                 const char *authorization,
                 const void *payload,
                 size_t len,
                 struct plain_call *ret_done)
{
    sync_notes();
    plain_add(fixture, authorization, payload, len, ret_done);
    sync_notes();
}

static void plain_calls_of_all_sizes_are_answered(void **state)
{
    static const size_t sizes[] = {0, 1, 100, 127, 128, 5000, 100000, 1u << 20, 4000000};
    struct fixture *fixture = *state;
    fixture->server.on_unary = note_and_echo;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = node_pattern(sizes[i]);
        struct plain_call done;
        call(fixture, NULL, data, sizes[i], &done);
        plain_assert_payload(&done, data, sizes[i]);
        plain_free(&done);
        free(data);
    }
    assert_string_equal(seen.function, "add");
    assert_memory_equal(seen.peer, "ipv4:127.0.0.1:", 15);
    assert_true(seen.left_ns > 0);
    assert_true(seen.left_ns <= 2 * TETHER_TEST_LIMIT_MS * TETHER__NS_PER_MS); /* gRPC rounds */
}

static void trace_id_is_taken_from_metadata(void **state)
{
#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
    static const char none[] = "00000000000000000000000000000000";
    static const struct {
        const char *metadata, *seen;
    } cases[] = {
        {NULL, none},
        {"00-" TRACE "-00f067aa0ba902b7-01", TRACE},
        {"00-" TRACE "-00f067aa0ba902b7-0", none},
        {"00-" TRACE "-00f067aa0ba902b7-011", none},
        {"01-" TRACE "-00f067aa0ba902b7-01", none},
        {"00-" TRACE "_00f067aa0ba902b7-01", none},
        {"00-4bf92f3577b34da6-3ce929d0e0e4736-00f067aa0ba902b7-01", none},
        {"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", none},
        {"", none},
    };
    struct fixture *fixture = *state;
    fixture->server.on_unary = note_and_echo;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cases); i++) {
        struct plain_request request = {.method = CALL, .traceparent = cases[i].metadata};
        struct plain_call done;
        char text[TETHER_TRACE_TEXT_SIZE];
        sync_notes();
        plain_start(&fixture->client, &request, &done);
        plain_finish(&done);
        sync_notes();
        assert_int_equal(done.code, GRPC_STATUS_OK);
        tether_trace_format(seen.trace, text);
        assert_string_equal(text, cases[i].seen);
        plain_free(&done);
    }
}

static void token_is_taken_from_metadata(void **state)
{
    static const struct {
        const char *metadata, *seen;
    } cases[] = {
        {NULL, ""},
        {"Bearer sesame", "sesame"},
        {"Basic c2VzYW1l", ""},
        {"Bearer ", ""},
        {"Bearer a-token-that-is-longer-than-what-fits-inside-of-a-slice",
         "a-token-that-is-longer-than-what-fits-inside-of-a-slice"},
    };
    struct fixture *fixture = *state;
    fixture->server.on_admit = note_token;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(cases); i++) {
        struct plain_call done;
        call(fixture, cases[i].metadata, "", 0, &done);
        plain_assert_payload(&done, "", 0);
        sync_notes();
        assert_string_equal(seen.token, cases[i].seen);
        plain_free(&done);
    }
}

static void fail_when_served(struct tether__unary *unary)
{
    note(unary);
    unary->reply(unary, TETHER_EINVAL, "served", TETHER__SLICE_EMPTY);
}

static void refused_client_is_answered_before_its_request_is_read(void **state)
{
    struct fixture *fixture = *state;
    const size_t len = 64u << 20; /* far beyond the limit of a request */
    char *data = calloc(1, len);
    struct plain_call done;
    assert_non_null(data);
    fixture->server.on_admit = note_token;
    fixture->server.on_unary = fail_when_served;
    seen.admission = TETHER_EAUTH;
    call(fixture, NULL, data, len, &done);
    assert_int_equal(done.code, tether_status_to_grpc(TETHER_EAUTH));
    assert_string_equal(done.details, "not admitted");
    assert_string_equal(seen.function, "");
    plain_free(&done);
    free(data);
}

static void errors_become_grpc_statuses(void **state)
{
    struct fixture *fixture = *state;
    fixture->server.on_unary = note_and_echo;
#define X(name, number, text, grpc) number,
    static const int statuses[] = {TETHER_STATUS_MAP(X)};
#undef X
    for (size_t i = 1; i < TETHER__ARRAY_LEN(statuses); i++) {
        char number[16];
        seen.status = statuses[i];
        seen.error = i % 2 ? "50% of it is missing: \xc3\xa4\n" : NULL;
        struct plain_call done;
        call(fixture, NULL, "ignored", 7, &done);
        assert_int_equal(done.code, tether_status_to_grpc(seen.status));
        assert_string_equal(done.details,
                            seen.error ? seen.error : tether_status_text(seen.status));
        snprintf(number, sizeof number, "%d", statuses[i]);
        assert_string_equal(done.tether_status, number);
        assert_null(done.body);
        plain_free(&done);
    }
}

static void *reply_later(void *unary)
{
    struct tether__slice payload = wire_block("later", 5);
    ((struct tether__unary *)unary)->reply(unary, TETHER_OK, NULL, payload);
    return NULL;
}

static void plain_call_may_be_answered_from_another_thread(void **state)
{
    struct fixture *fixture = *state;
    struct plain_request request = {.method = CALL};
    struct plain_call done;
    pthread_t thread;
    fixture->server.on_unary = note_and_hold;
    plain_start(&fixture->client, &request, &done); /* an empty UnaryCall has an empty body */
    assert_true(tether_test_event_wait(&seen.came, 1, TETHER_TEST_LIMIT_MS));
    assert_false(atomic_load(&seen.held->canceled));
    assert_int_equal(pthread_create(&thread, NULL, reply_later, seen.held), 0);
    plain_finish(&done);
    pthread_join(thread, NULL);
    plain_assert_payload(&done, "later", 5);
    plain_free(&done);
    assert_eventually(wire_live_blocks() == 0);
}

static void many_plain_calls_at_once_are_answered(void **state)
{
    enum { N = 100 };
    struct fixture *fixture = *state;
    static struct plain_call calls[N];
    for (uint32_t i = 0; i < N; i++) {
        struct plain_request request = {.method = CALL};
        uint8_t *body = plain_pack("f", &i, sizeof i, &request.len);
        request.body = body;
        plain_start(&fixture->client, &request, &calls[i]);
        free(body);
    }
    for (uint32_t i = 0; i < N; i++) {
        plain_finish(&calls[i]);
        plain_assert_payload(&calls[i], &i, sizeof i);
        plain_free(&calls[i]);
    }
}

/* Holds a call without a function, answers others. */
static void hold_or_echo(struct tether__unary *unary)
{
    if (unary->function.len == 0)
        note_and_hold(unary);
    else
        note_and_echo(unary);
}

static void answer_what_nobody_waits_for(void)
{
    assert_eventually(atomic_load(&seen.held->canceled));
    seen.held->reply(seen.held, TETHER_OK, NULL, TETHER__SLICE_EMPTY);
}

static void plain_call_ends_when_its_client_cancels(void **state)
{
    struct fixture *fixture = *state;
    struct plain_request request = {.method = CALL};
    struct plain_call done;
    fixture->server.on_unary = hold_or_echo;
    plain_start(&fixture->client, &request, &done);
    assert_true(tether_test_event_wait(&seen.came, 1, TETHER_TEST_LIMIT_MS));
    grpc_call_cancel(done.call, NULL);
    plain_finish(&done);
    assert_int_equal(done.code, GRPC_STATUS_CANCELLED);
    plain_free(&done);
    answer_what_nobody_waits_for();
}

static void plain_call_ends_when_its_deadline_passes(void **state)
{
    struct fixture *fixture = *state;
    struct plain_request request = {.method = CALL, .timeout_ms = 50};
    struct plain_call done;
    fixture->server.on_unary = hold_or_echo;
    plain_start(&fixture->client, &request, &done);
    plain_finish(&done);
    assert_int_equal(done.code, GRPC_STATUS_DEADLINE_EXCEEDED);
    plain_free(&done);
    /* On a busy machine it may have expired before the server saw it. Calls of one client arrive in
     * order: after the next there is no doubt. */
    call(fixture, NULL, "x", 1, &done);
    plain_free(&done);
    if (tether_test_event_wait(&seen.came, 1, 0))
        answer_what_nobody_waits_for();
}

static void stop_fails_plain_calls_that_are_not_answered(void **state)
{
    struct fixture *fixture = *state;
    struct plain_request request = {.method = CALL};
    struct plain_call done;
    fixture->server.on_unary = note_and_hold;
    plain_start(&fixture->client, &request, &done);
    assert_true(tether_test_event_wait(&seen.came, 1, TETHER_TEST_LIMIT_MS));
    fixture->server.transport->ops->stop(fixture->server.transport);
    plain_finish(&done);
    assert_int_equal(done.code, GRPC_STATUS_UNAVAILABLE);
    plain_free(&done);
    assert_eventually(atomic_load(&seen.held->canceled));
    seen.held->reply(seen.held, TETHER_OK, NULL, TETHER__SLICE_EMPTY);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static const struct CMUnitTest tests[] = {
    SERVED(plain_calls_of_all_sizes_are_answered),
    SERVED(token_is_taken_from_metadata),
    SERVED(refused_client_is_answered_before_its_request_is_read),
    SERVED(trace_id_is_taken_from_metadata),
    SERVED(errors_become_grpc_statuses),
    SERVED(plain_call_may_be_answered_from_another_thread),
    SERVED(many_plain_calls_at_once_are_answered),
    SERVED(plain_call_ends_when_its_client_cancels),
    SERVED(plain_call_ends_when_its_deadline_passes),
    SERVED(stop_fails_plain_calls_that_are_not_answered),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
