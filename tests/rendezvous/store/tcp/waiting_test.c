/* The store server with raw bytes: clients that wait for keys, elements, members and changes. */
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/raw.h"
#include "tests/rendezvous/store/tcp/raw_server.h"

/* Starts a server that never drops a slow client, so that a slow machine does not matter. */
static int start_patient(void **state)
{
    (void)state;
    raw_server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.stall_timeout_ms = -1), &raw_server,
                                   NULL) != TETHER_OK;
}

/* ---- Waiting -------------------------------------------------------------------------------- */

static void await_waiting(uint64_t n)
{
    assert_eventually(raw_server_stats().waiting == n);
}

static void wait_is_answered_when_keys_exist(void **state)
{
    (void)state;
    int waiter = raw_server_dial_v(), setter = raw_server_dial_v();
    RAW_SEND(waiter, "\x06" U64_2 U64_2 "/x" U64_2 "/y");
    await_waiting(1);
    RAW_SEND(setter, "\x01" U64_2 "/x" U64_0 "\x08" U64_2 "/x"); /* exists and is deleted again */
    RAW_EXPECT(setter, U64_1);
    RAW_SEND(setter, "\x01" U64_2 "/y" U64_0 "\x0d\0\0\0\0");
    RAW_EXPECT(setter, "\0\0\0\0");
    assert_true(raw_is_silent(waiter));
    RAW_SEND(setter, "\x02" U64_2 "/x" U64_0 U64_1 "1"); /* COMPARE_SET wakes as well */
    RAW_EXPECT(waiter, "\0");
    await_waiting(0);
    close(waiter), close(setter);
}

static void wait_ends_when_client_cancels_it(void **state)
{
    (void)state;
    int fd = raw_server_dial_v();
    RAW_SEND(fd, "\x06" U64_1 U64_2 "/x");
    await_waiting(1);
    RAW_SEND(fd, "\x0c");
    RAW_EXPECT(fd, "\1");
    RAW_SEND(fd, "\x01" U64_2 "/x" U64_0 "\x07"); /* the wait has ended: no further byte comes */
    RAW_EXPECT(fd, U64_1);
    RAW_SEND(fd, "\x06" U64_1 U64_2 "/x\x0c"); /* ready before the cancel */
    RAW_EXPECT(fd, "\0\1");
    close(fd);
}

/* A second WAIT replaces the first, so one byte comes. Other requests are answered meanwhile. */
static void wait_is_replaced_when_client_sends_a_second(void **state)
{
    (void)state;
    int fd = raw_server_dial_v(), setter = raw_server_dial_v();
    RAW_SEND(fd, "\x06" U64_1 U64_2 "/x\x06" U64_1 U64_2 "/y\x07");
    RAW_EXPECT(fd, U64_0);
    RAW_SEND(setter, "\x01" U64_2 "/x" U64_0 "\x07");
    RAW_EXPECT(setter, U64_1);
    assert_true(raw_is_silent(fd));
    RAW_SEND(setter, "\x01" U64_2 "/y" U64_0);
    RAW_EXPECT(fd, "\0");
    RAW_SEND(fd, "\x07");
    RAW_EXPECT(fd, U64_2);
    close(fd), close(setter);
}

static void barrier_is_answered_when_last_member_arrives(void **state)
{
    (void)state;
    int a = raw_server_dial_v(), b = raw_server_dial_v();
    RAW_SEND(a, "\x12" U64_2 "/b" U64_2);
    await_waiting(1);
    RAW_SEND(b, "\x12" U64_2 "/b" U64_2);
    RAW_EXPECT(a, "\0");
    RAW_EXPECT(b, "\0");
    close(a), close(b);
}

/* ---- Clients that pop from a queue: WAIT, then QUEUE_POP ---- */

#define WAIT_Q "\x06" U64_1 U64_2 "/q"
#define PUSH_Q(element) "\x0e" U64_2 "/q" U64_1 element
#define POP_Q "\x0f" U64_2 "/q"
#define LEN_Q "\x10" U64_2 "/q"

enum { POPPERS = 4 };

static void queue_poppers(int fds[POPPERS])
{
    for (int i = 0; i < POPPERS; i++) {
        fds[i] = raw_server_dial_v();
        RAW_SEND(fds[i], WAIT_Q);
        await_waiting((uint64_t)i + 1);
    }
}

/* QUEUE_LEN has a reply, so the pushes before it have been executed when it comes. */
static void push(int fd, const char *element)
{
    char request[] = PUSH_Q("?") LEN_Q;
    request[sizeof(PUSH_Q("?")) - 2] = element[0];
    raw_send(fd, request, sizeof request - 1);
    RAW_EXPECT(fd, U64_1);
}

static void one_element_wakes_one_popper(void **state)
{
    (void)state;
    int fds[POPPERS], pusher = raw_server_dial_v();
    queue_poppers(fds);
    for (int i = 0; i < POPPERS; i++) {
        push(pusher, "x");
        RAW_EXPECT(fds[i], "\0"); /* in the order of their WAITs */
        assert_int_equal(raw_server_stats().waiting, POPPERS - 1 - i);
        RAW_SEND(fds[i], POP_Q);
        RAW_EXPECT(fds[i], U64_1 U64_1 "x");
    }
    for (int i = 0; i < POPPERS; i++)
        close(fds[i]);
    close(pusher);
}

/* The element is reserved for the popper whose WAIT it ended. */
static void element_is_kept_for_the_popper_that_was_woken(void **state)
{
    (void)state;
    int fds[POPPERS], pusher = raw_server_dial_v();
    queue_poppers(fds);
    push(pusher, "x");
    RAW_EXPECT(fds[0], "\0");
    RAW_SEND(pusher, POP_Q); /* without a WAIT before it: the element is reserved for another */
    RAW_EXPECT(pusher, U64_0);
    int late = raw_server_dial_v();
    RAW_SEND(late, WAIT_Q);
    await_waiting(POPPERS);
    RAW_SEND(fds[0], POP_Q);
    RAW_EXPECT(fds[0], U64_1 U64_1 "x");
    for (int i = 0; i < POPPERS; i++)
        close(fds[i]);
    close(late), close(pusher);
}

static void next_popper_is_woken_when_the_first_leaves_without_popping(void **state)
{
    (void)state;
    int fds[POPPERS], pusher = raw_server_dial_v();
    queue_poppers(fds);
    push(pusher, "x");
    RAW_EXPECT(fds[0], "\0");
    close(fds[0]); /* it disconnects */
    RAW_EXPECT(fds[1], "\0");
    RAW_SEND(fds[1], "\x07"); /* another request instead of a pop */
    RAW_EXPECT(fds[1], U64_0);
    RAW_EXPECT(fds[2], "\0");
    RAW_EXPECT(fds[3], "\0"); /* fds[2] sends no request: its claim ends at the second sweep */
    RAW_SEND(fds[3], POP_Q);
    RAW_EXPECT(fds[3], U64_1 U64_1 "x");
    for (int i = 1; i < POPPERS; i++)
        close(fds[i]);
    close(pusher);
}

static void waits_of_all_clients_end_when_key_gets_a_value(void **state)
{
    (void)state;
    int fds[POPPERS], setter = raw_server_dial_v();
    queue_poppers(fds);
    RAW_SEND(setter, "\x01" U64_2 "/q" U64_0);
    for (int i = 0; i < POPPERS; i++) {
        RAW_EXPECT(fds[i], "\0");
        close(fds[i]);
    }
    close(setter);
}

/* A 1.13 client can't cancel a wait. PyTorch's server then puts a stray byte before the reply to
 * its next request: num_keys was 768. */
static void wait_ends_when_legacy_client_sends_a_request(void **state)
{
    (void)state;
    int fd = raw_server_dial(), setter = raw_server_dial();
    RAW_SEND(fd, "\x05" U64_1 U64_2 "/x");
    await_waiting(1);
    RAW_SEND(fd, "\x03" U64_2 "/n" U64_1);
    RAW_EXPECT(fd, U64_1);
    RAW_SEND(setter, "\x00" U64_2 "/x" U64_0 "\x06");
    RAW_EXPECT(setter, U64_2);
    RAW_SEND(fd, "\x06");
    RAW_EXPECT(fd, U64_2);
    close(fd), close(setter);
}

static void watch_reports_every_change_of_its_key(void **state)
{
    (void)state;
    int watcher = raw_server_dial(), other = raw_server_dial(), user = raw_server_dial();
    RAW_SEND(watcher, "\x07" U64_2 "/w"); /* first on its connection: WATCH_KEY */
    RAW_EXPECT(watcher, "\3");
    RAW_SEND(other, "\x07" U64_2 "/w\x07" U64_2 "/n");
    RAW_EXPECT(other, "\3\3");
    RAW_SEND(user, "\x00" U64_2 "/w" U64_1 "1");
    RAW_EXPECT(watcher, "\1" U64_2 "/w" U64_0 U64_1 "1"); /* created */
    RAW_EXPECT(other, "\1" U64_2 "/w" U64_0 U64_1 "1");
    close(watcher);
    RAW_SEND(user, "\x00" U64_2 "/w" U64_1 "2"); /* updated */
    RAW_EXPECT(other, "\0" U64_2 "/w" U64_1 "1" U64_1 "2");
    RAW_SEND(user, "\x01" U64_2 "/w" U64_1 "2" U64_1 "3"); /* by COMPARE_SET */
    RAW_EXPECT(other, "\0" U64_2 "/w" U64_1 "2" U64_1 "3");
    /* The value differs, so nothing changes. */
    RAW_SEND(user, "\x01" U64_2 "/w" U64_1 "2" U64_1 "4");
    RAW_SEND(user, "\x03" U64_2 "/n" U64_5);
    RAW_EXPECT(other, "\1" U64_2 "/n" U64_0 U64_1 "5");
    RAW_SEND(user, "\x08" U64_2 "/w");
    RAW_EXPECT(other, "\2" U64_2 "/w" U64_1 "3" U64_0); /* deleted */
    close(other), close(user);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(wait_is_answered_when_keys_exist, raw_server_start),
        WITH(wait_ends_when_client_cancels_it, raw_server_start),
        WITH(wait_is_replaced_when_client_sends_a_second, raw_server_start),
        WITH(barrier_is_answered_when_last_member_arrives, raw_server_start),
        WITH(one_element_wakes_one_popper, start_patient),
        WITH(element_is_kept_for_the_popper_that_was_woken, start_patient),
        WITH(next_popper_is_woken_when_the_first_leaves_without_popping,
             raw_server_start_impatient),
        WITH(waits_of_all_clients_end_when_key_gets_a_value, raw_server_start),
        WITH(wait_ends_when_legacy_client_sends_a_request, raw_server_start),
        WITH(watch_reports_every_change_of_its_key, raw_server_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
