/* The store server with raw bytes: each dialect, whole and in pieces, and invalid requests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/raw.h"

static tether_store_server *server;

static int start(void **state)
{
    (void)state;
    server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, NULL) != TETHER_OK;
}

static int start_l1(void **state)
{
    (void)state;
    server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.legacy_is_l1 = true), &server, NULL) !=
           TETHER_OK;
}

/* Starts a server that never drops a slow client, so that a slow machine does not matter. */
static int start_patient(void **state)
{
    (void)state;
    server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.stall_timeout_ms = -1), &server,
                                   NULL) != TETHER_OK;
}

static int stop(void **state)
{
    (void)state;
    server = tether_store_server_release(server);
    return 0;
}

static int dial(void)
{
    return raw_dial(tether_store_server_port(server));
}

static int dial_v(void)
{
    int fd = dial();
    RAW_SEND(fd, VALIDATE);
    return fd;
}

static struct tether_store_server_stats stats(void)
{
    struct tether_store_server_stats now;
    tether_store_server_stats(server, &now);
    return now;
}

/* ---- Each dialect, request by request ------------------------------------------------------- */

struct step {
    const char *request;
    size_t request_len;
    const char *reply;
    size_t reply_len;
};

#define STEP(request, reply)                                   \
    {                                                          \
        request, sizeof(request) - 1, reply, sizeof(reply) - 1 \
    }

static const struct step v_steps[] = {
    STEP(VALIDATE "\x0d\x39\x05\0\0", "\x39\x05\0\0"),         /* PING 1337 */
    STEP("\x01" U64_2 "/k" U64_2 "v1", ""),                    /* SET, no reply */
    STEP("\x03" U64_2 "/k", U64_2 "v1"),                       /* GET */
    STEP("\x03" U64_5 "/none", U64_0),                         /* GET, absent: empty */
    STEP("\x02" U64_2 "/k" U64_2 "v1" U64_2 "v2", U64_2 "v2"), /* COMPARE_SET, swaps */
    STEP("\x02" U64_2 "/k" U64_2 "v1" U64_2 "v3", U64_2 "v2"), /* does not */
    STEP("\x02" U64_2 "/c" U64_1 "x" U64_1 "y", U64_1 "x"),    /* absent: the expected */
    STEP("\x02" U64_2 "/c" U64_0 U64_1 "y", U64_1 "y"),        /* absent, empty expected */
    STEP("\x04" U64_2 "/n" U64_MINUS_7, U64_MINUS_7),          /* ADD */
    STEP("\x04" U64_2 "/n" U64_5, U64_MINUS_2),                /* ADD */
    STEP("\x03" U64_2 "/n", U64_2 "-2"),                       /* in decimal */
    STEP("\x05" U64_2 U64_2 "/k" U64_2 "/n", "\0"),            /* CHECK: ready */
    STEP("\x05" U64_2 U64_2 "/k" U64_2 "/x", "\1"),            /* CHECK: not ready */
    STEP("\x05" U64_0, "\0"),                                  /* CHECK of nothing */
    STEP("\x06" U64_1 U64_2 "/k", "\0"),                       /* WAIT */
    STEP("\x06" U64_0, "\0"),                                  /* WAIT for nothing */
    STEP("\x07", U64_3),                                       /* GETNUMKEYS */
    STEP("\x08" U64_2 "/c", U64_1),                            /* DELETE_KEY */
    STEP("\x08" U64_2 "/c", U64_0),                            /* again */
    STEP("\x09" U64_2 "/a" U64_2 "po", ""),                    /* APPEND */
    STEP("\x09" U64_2 "/a" U64_4 "tato", ""),                  /* APPEND */
    STEP("\x0a" U64_2 U64_2 "/a" U64_2 "/k", U64_6 "potato" U64_2 "v2"), /* MULTI_GET */
    STEP("\x0b" U64_2 U64_2 "/p" U64_1 "1" U64_2 "/q" U64_0, ""),        /* MULTI_SET */
    STEP("\x0a" U64_2 U64_2 "/q" U64_2 "/p", U64_0 U64_1 "1"),           /* MULTI_GET */
    STEP("\x0b" U64_0, ""),                                              /* MULTI_SET of nothing */
    STEP("\x0c", "\1"),                                                  /* CANCEL_WAIT, always 1 */
    STEP("\x0e" U64_2 "/l" U64_1 "1", ""),                               /* QUEUE_PUSH */
    STEP("\x0e" U64_2 "/l" U64_0, ""),                                   /* QUEUE_PUSH of nothing */
    STEP("\x10" U64_2 "/l", U64_2),                                      /* QUEUE_LEN */
    STEP("\x05" U64_1 U64_2 "/l", "\0"),                                 /* CHECK counts queues */
    STEP("\x0f" U64_2 "/l", U64_2 U64_1 "1"),         /* QUEUE_POP: length before */
    STEP("\x0f" U64_2 "/l", U64_1 U64_0),             /* the empty one */
    STEP("\x0f" U64_2 "/l", U64_0),                   /* none left */
    STEP("\x12" U64_2 "/b" U64_1, "\0"),              /* BARRIER of one */
    STEP("\x0d\xff\xff\xff\xff", "\xff\xff\xff\xff"), /* PING */
};

/* Requests that L0 and L1 share; the first one does not decide between them. */
static const struct step legacy_steps[] = {
    STEP("\x00" U64_2 "/k" U64_2 "v1", ""),                    /* as measured: set('k', 'v1') */
    STEP("\x02" U64_2 "/k", U64_2 "v1"),                       /* GET */
    STEP("\x03" U64_2 "/n" U64_MINUS_7, U64_MINUS_7),          /* ADD */
    STEP("\x03" U64_2 "/n" U64_5, U64_MINUS_2),                /* as measured: fe ff.. */
    STEP("\x01" U64_2 "/k" U64_2 "v1" U64_2 "v2", U64_2 "v2"), /* COMPARE_SET */
    STEP("\x01" U64_2 "/k" U64_2 "v1" U64_2 "v3", U64_2 "v2"),
    STEP("\x04" U64_1 U64_2 "/k", "\0"),     /* CHECK */
    STEP("\x04" U64_1 U64_2 "/x", "\1"),     /* CHECK */
    STEP("\x05" U64_1 U64_2 "/k", "\0"),     /* WAIT */
    STEP("\x06", U64_2),                     /* GETNUMKEYS */
    STEP("\x03" U64_5 "init/" U64_1, U64_1), /* a worker joins */
    STEP("\x00" U64_2 "/e" U64_0, ""),       /* an empty value */
    STEP("\x02" U64_2 "/e", U64_0),          /* answered at once */
    STEP("\x00" U64_0 U64_1 "v", ""),        /* an empty key */
    STEP("\x02" U64_0, U64_1 "v"),
};

static const struct step l0_steps[] = {
    STEP("\x08" U64_2 "/k", U64_1), /* DELETE_KEY */
    STEP("\x08" U64_2 "/k", U64_0),
};

static const struct step l1_steps[] = {
    STEP("\x07" U64_2 "/k", U64_1), /* DELETE_KEY, after other requests: this is L1 */
    STEP("\x07" U64_2 "/k", U64_0),
    STEP("\x08" U64_2 "/a" U64_2 "po", ""), /* so this is APPEND */
    STEP("\x08" U64_2 "/a" U64_4 "tato", ""),
    STEP("\x09" U64_1 U64_2 "/a", U64_6 "potato"), /* MULTI_GET */
    STEP("\x0a" U64_1 U64_2 "/p" U64_1 "1", ""),   /* MULTI_SET */
    STEP("\x02" U64_2 "/p", U64_1 "1"),            /* GET */
    STEP("\x0b", "\1"),                            /* CANCEL_WAIT */
};

enum how { WHOLE, DRIBBLING, PIPELINED };

static void take_steps(int fd, const struct step *steps, size_t n, enum how how)
{
    for (size_t i = 0; i < n; i++) {
        if (how == DRIBBLING)
            raw_send_dribbling(fd, steps[i].request, steps[i].request_len);
        else
            raw_send(fd, steps[i].request, steps[i].request_len);
        if (how != PIPELINED)
            raw_expect(fd, steps[i].reply, steps[i].reply_len, __FILE__, (int)i);
    }
    for (size_t i = 0; i < n && how == PIPELINED; i++)
        raw_expect(fd, steps[i].reply, steps[i].reply_len, __FILE__, (int)i);
}

#define TAKE(fd, steps, how) take_steps(fd, steps, sizeof steps / sizeof steps[0], how)

static void speak_v(enum how how)
{
    int fd = dial();
    TAKE(fd, v_steps, how);
    assert_true(raw_is_silent(fd));
    close(fd);
}

static void server_answers_requests_of_dialect_v(void **state)
{
    (void)state;
    speak_v(WHOLE);
}

static void server_answers_dialect_v_when_bytes_come_one_by_one(void **state)
{
    (void)state;
    speak_v(DRIBBLING);
}

static void server_answers_dialect_v_when_requests_come_at_once(void **state)
{
    (void)state;
    speak_v(PIPELINED);
}

static void list_keys_answers_all_keys_in_dialect_v(void **state)
{
    (void)state;
    int fd = dial_v();
    RAW_SEND(fd, "\x11");
    RAW_EXPECT(fd, U64_0);
    RAW_SEND(fd, "\x01" U64_2 "/k" U64_0 "\x11");
    RAW_EXPECT(fd, U64_1 U64_2 "/k");
    close(fd);
}

static void speak_l0(enum how how)
{
    int fd = dial();
    TAKE(fd, legacy_steps, how);
    TAKE(fd, l0_steps, how);
    close(fd);
}

static void server_answers_requests_of_dialect_l0(void **state)
{
    (void)state;
    speak_l0(WHOLE);
}

static void server_answers_dialect_l0_when_bytes_come_one_by_one(void **state)
{
    (void)state;
    speak_l0(DRIBBLING);
}

static void speak_l1(enum how how)
{
    int fd = dial();
    TAKE(fd, legacy_steps, how);
    TAKE(fd, l1_steps, how);
    close(fd);
}

static void server_answers_requests_of_dialect_l1(void **state)
{
    (void)state;
    speak_l1(WHOLE);
}

static void server_answers_dialect_l1_when_bytes_come_one_by_one(void **state)
{
    (void)state;
    speak_l1(DRIBBLING);
}

/* Clients of three dialects on one port share their keys, and do not affect each other's
 * dialect. */
static void clients_share_keys_when_dialects_differ(void **state)
{
    (void)state;
    int v = dial_v(), l0 = dial(), l1 = dial();
    RAW_SEND(v, "\x01" U64_2 "/k" U64_1 "1\x0d\0\0\0\0");
    RAW_EXPECT(v, "\0\0\0\0");
    RAW_SEND(l0, "\x03" U64_2 "/k" U64_1);
    RAW_EXPECT(l0, U64_2);
    RAW_SEND(l1, "\x09" U64_1 U64_2 "/k"); /* MULTI_GET: this connection is certainly L1 */
    RAW_EXPECT(l1, U64_1 "2");
    RAW_SEND(l1, "\x08" U64_2 "/k" U64_1 "0\x02" U64_2 "/k"); /* APPEND, GET */
    RAW_EXPECT(l1, U64_2 "20");
    RAW_SEND(l0, "\x08" U64_2 "/k"); /* still DELETE_KEY for the other */
    RAW_EXPECT(l0, U64_1);
    close(v), close(l0), close(l1);
}

/* Opcode 8 is DELETE in L0 and APPEND in L1. A 2.1 client that appends to a key before it has sent
 * anything that tells L1 from L0 must not delete it. */
static void append_of_l1_client_deletes_nothing_when_server_expects_l0(void **state)
{
    (void)state;
    int fd = dial();
    RAW_SEND(fd, "\x00" U64_2 "/a" U64_2 "po\x08" U64_2 "/a" U64_4 "tato\x02" U64_2 "/a");
    RAW_EXPECT(fd, U64_6 "potato");
    close(fd);
}

static void delete_of_l0_client_is_executed_when_nothing_follows(void **state)
{
    (void)state;
    int fd = dial(), other = dial();
    RAW_SEND(fd, "\x00" U64_2 "/a" U64_2 "po\x06");
    RAW_EXPECT(fd, U64_1);
    RAW_SEND(other, "\x08" U64_2 "/b"); /* several wait at the same time */
    RAW_SEND(fd, "\x08" U64_2 "/a");
    RAW_EXPECT(fd, U64_1);
    RAW_EXPECT(other, U64_0);
    /* The dialect is known, so requests are executed at once now. */
    RAW_SEND(fd, "\x08" U64_2 "/a\x06");
    RAW_EXPECT(fd, U64_0 U64_0);
    close(fd), close(other);
}

/* A server with the option for L1 reads ambiguous opcodes as L1. */
static void server_reads_l1_when_option_says_so(void **state)
{
    (void)state;
    int fd = dial();
    RAW_SEND(fd, "\x08" U64_2 "/a" U64_2 "po\x02" U64_2 "/a");
    RAW_EXPECT(fd, U64_2 "po");
    close(fd);
    fd = dial();
    RAW_SEND(fd, "\x07" U64_2 "/a");
    RAW_EXPECT(fd, U64_1);
    close(fd);
}

/* ---- Waiting -------------------------------------------------------------------------------- */

static void await_waiting(uint64_t n)
{
    assert_eventually(stats().waiting == n);
}

static void wait_is_answered_when_keys_exist(void **state)
{
    (void)state;
    int waiter = dial_v(), setter = dial_v();
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
    int fd = dial_v();
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
    int fd = dial_v(), setter = dial_v();
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
    int a = dial_v(), b = dial_v();
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
        fds[i] = dial_v();
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
    int fds[POPPERS], pusher = dial_v();
    queue_poppers(fds);
    for (int i = 0; i < POPPERS; i++) {
        push(pusher, "x");
        RAW_EXPECT(fds[i], "\0"); /* in the order of their WAITs */
        assert_int_equal(stats().waiting, POPPERS - 1 - i);
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
    int fds[POPPERS], pusher = dial_v();
    queue_poppers(fds);
    push(pusher, "x");
    RAW_EXPECT(fds[0], "\0");
    RAW_SEND(pusher, POP_Q); /* without a WAIT before it: the element is reserved for another */
    RAW_EXPECT(pusher, U64_0);
    int late = dial_v();
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
    int fds[POPPERS], pusher = dial_v();
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
    int fds[POPPERS], setter = dial_v();
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
    int fd = dial(), setter = dial();
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
    int watcher = dial(), other = dial(), user = dial();
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

/* ---- Invalid requests ----------------------------------------------------------------------- */

static void client_is_dropped_when_it_sends_invalid_bytes(void **state)
{
    (void)state;
    static const struct step table[] = {
        STEP("\xce\xf7\x85\x3c\x00", ""), /* a magic number before each request: a draft */
        STEP("GET / HTTP/1.1\r\n\r\n", ""),
        STEP("\x0c", ""), /* not an opcode of a legacy client */
        STEP("\x00"
             "\xff\xff\xff\xff\xff\xff\xff\xff",
             ""), /* a key of 2^64-1 bytes */
        STEP("\x00"
             "\0\0\0\0\0\0\0\x40",
             ""), /* 2^62, as a port scan sent */
        STEP("\x00"
             "\x02\x20\0\0\0\0\0\0",
             ""), /* one more than 8 KiB and "/" */
        STEP("\x00" U64_2 "/k"
             "\x01\0\0\x04\0\0\0\0",
             ""), /* one more than 64 MiB */
        STEP("\x05"
             "\x01\0\x02\0\0\0\0\0",
             ""), /* 131,073 keys */
        STEP("\x05"
             "\xff\xff\xff\xff\xff\xff\xff\x7f",
             ""),                          /* keys without end */
        STEP(VALIDATE "\x13", ""),         /* beyond BARRIER */
        STEP(VALIDATE "\x00\0\0\0\0", ""), /* VALIDATE with another number */
        STEP(VALIDATE "\x0b\xff\xff\xff\xff\xff\xff\xff\xff", ""),
        STEP(VALIDATE "\x01" U64_1 "/" U64_1 "x\x04" U64_1 "/" U64_1, ""), /* ADD to "x" */
        STEP("\x00" U64_1 "/" U64_1 "x\x03" U64_1 "/" U64_1, ""),
        STEP("\x02" U64_5 "/none", ""), /* legacy GET of nothing */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int fd = dial();
        raw_send(fd, table[i].request, table[i].request_len);
        raw_expect_closed(fd, __FILE__, (int)i);
    }
    struct tether_store_server_stats now = stats();
    assert_int_equal(now.malformed, sizeof table / sizeof table[0]);
    assert_int_equal(now.buffered_bytes, 0);
    int fd = dial_v(); /* the only key is the one that two of the steps have set before */
    RAW_SEND(fd, "\x08" U64_1 "/");
    RAW_EXPECT(fd, U64_1);
    close(fd);
    speak_v(WHOLE);
}

/* Sends half of every kind of request and nothing more. Other clients are not affected, and no part
 * of the request is applied. */
static void incomplete_requests_change_nothing_and_delay_no_client(void **state)
{
    (void)state;
    enum { N = sizeof v_steps / sizeof v_steps[0] };
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = dial_v();
        const struct step *step = &v_steps[i];
        raw_send(fds[i], step->request, step->request_len / 2);
    }
    int last = dial_v();
    RAW_SEND(last, "\x0b" U64_2 U64_2 "/x" U64_1 "1" U64_2 "/y" U64_5 "1234"); /* a byte short */
    int fd = dial_v();
    RAW_SEND(fd, "\x05" U64_1 U64_2 "/x\x07");
    RAW_EXPECT(fd, "\1" U64_0);
    RAW_SEND(last, "5\x07\x08" U64_2 "/x\x08" U64_2 "/y");
    RAW_EXPECT(last, U64_2 U64_1 U64_1);
    close(fd), close(last);
    speak_v(WHOLE);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    assert_eventually(stats().clients == 0);
    assert_int_equal(stats().buffered_bytes, 0);
}

/* The server must not allocate memory for an announced length. */
static void memory_grows_with_received_bytes_when_length_is_large(void **state)
{
    (void)state;
    int fds[50];
    for (int i = 0; i < 50; i++) {
        fds[i] = dial_v();
        RAW_SEND(fds[i], "\x01" U64_2
                         "/k"
                         "\0\0\0\x04\0\0\0\0"
                         "the first bytes of 64 MiB");
    }
    assert_eventually(stats().bytes_in >= 50 * 40);
    assert_in_range(stats().buffered_bytes, 50 * 25, 50 << 17);
    for (int i = 0; i < 50; i++)
        close(fds[i]);
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

static void server_accepts_values_of_64_mib(void **state)
{
    (void)state;
    size_t size = (size_t)64 << 20; /* the default limit */
    char *value = malloc(size);
    for (size_t i = 0; i < size; i++)
        value[i] = (char)(i >> 12);
    int fd = dial_v();
    RAW_SEND(fd, "\x01" U64_2
                 "/k"
                 "\0\0\0\x04\0\0\0\0");
    raw_send(fd, value, size);
    RAW_SEND(fd, "\x03" U64_2 "/k");
    RAW_EXPECT(fd, "\0\0\0\x04\0\0\0\0");
    raw_expect(fd, value, size, __FILE__, __LINE__);
    RAW_SEND(fd, "\x07");
    RAW_EXPECT(fd, U64_1);
    assert_eventually(stats().buffered_bytes < 1 << 20); /* given back */
    close(fd);
    free(value);
}

static void server_accepts_requests_of_many_keys(void **state)
{
    (void)state;
    enum { N = 20000 };
    tether_buf request = TETHER_BUF_INIT;
    char item[64];
    uint64_t n = N, len;
    tether_buf_append(&request, tether_bytes_of("\x0b", 1));
    tether_buf_append(&request, tether_bytes_of(&n, sizeof n));
    for (int i = 0; i < N; i++) {
        len = (uint64_t)snprintf(item, sizeof item, "/key%d", i);
        tether_buf_append(&request, tether_bytes_of(&len, sizeof len));
        tether_buf_append(&request, tether_bytes_of(item, len));
        tether_buf_append(&request, tether_bytes_of(U64_2 "ab", 10));
    }
    int fd = dial_v();
    raw_send(fd, request.data, request.len);
    RAW_SEND(fd, "\x07");
    RAW_EXPECT(fd, "\x20\x4e\0\0\0\0\0\0");
    tether_buf_fini(&request);
    close(fd);
}

/* ---- Clients that do not read --------------------------------------------------------------- */

static int start_impatient(void **state)
{
    (void)state;
    server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.stall_timeout_ms = 200), &server,
                                   NULL) != TETHER_OK;
}

/* A client requests megabytes again and again and reads none. The bytes that the server keeps for
 * it are bounded, and in the end it is dropped. Others are served all the time. */
static void client_is_dropped_when_it_reads_no_replies(void **state)
{
    (void)state;
    size_t size = (size_t)1 << 20;
    char *value = calloc(1, size);
    int fd = dial_v(), other = dial_v();
    RAW_SEND(fd, "\x01" U64_2
                 "/k"
                 "\0\0\x10\0\0\0\0\0");
    raw_send(fd, value, size);
    free(value);
    uint64_t most = 0;
    for (int i = 0; i < 1000; i++) {
        ssize_t sent = send(fd, "\x03" U64_2 "/k", 11, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0)
            break; /* dropped, or no longer read from */
        RAW_SEND(other, "\x0d\0\0\0\0");
        RAW_EXPECT(other, "\0\0\0\0");
        uint64_t held = stats().buffered_bytes;
        most = held > most ? held : most;
    }
    assert_in_range(most, size, 8 * size);
    assert_eventually(stats().stalled == 1);
    assert_eventually(stats().clients == 1);
    assert_in_range(stats().buffered_bytes, 0, 1 << 16);
    close(fd), close(other);
}

/* A slow client that reads gets all bytes. */
static void slow_client_gets_all_replies(void **state)
{
    (void)state;
    size_t size = (size_t)1 << 20;
    enum { N = 20 };
    char *value = malloc(size);
    memset(value, 'v', size);
    int fd = dial_v();
    RAW_SEND(fd, "\x01" U64_2
                 "/k"
                 "\0\0\x10\0\0\0\0\0");
    raw_send(fd, value, size);
    for (int i = 0; i < N; i++)
        RAW_SEND(fd, "\x03" U64_2 "/k");
    for (int i = 0; i < N; i++) {
        RAW_EXPECT(fd, "\0\0\x10\0\0\0\0\0");
        raw_expect(fd, value, size, __FILE__, __LINE__);
    }
    assert_int_equal(stats().stalled, 0);
    free(value);
    close(fd);
}

static void watcher_is_dropped_when_it_reads_no_events(void **state)
{
    (void)state;
    size_t size = (size_t)1 << 20;
    int watcher = dial(), user = dial();
    char *value = calloc(1, size);
    RAW_SEND(watcher, "\x07" U64_2 "/w");
    RAW_EXPECT(watcher, "\3");
    for (int i = 0; i < 20; i++) {
        RAW_SEND(user, "\x00" U64_2
                       "/w"
                       "\0\0\x10\0\0\0\0\0");
        raw_send(user, value, size);
    }
    free(value);
    RAW_SEND(user, "\x06");
    RAW_EXPECT(user, U64_1);
    assert_eventually(stats().clients == 1);
    assert_int_equal(stats().stalled, 1);
    close(watcher), close(user);
}

static int start_small(void **state)
{
    (void)state;
    server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.limits = {.max_key = 10,
                                                                       .max_value = 100,
                                                                       .max_keys = 3,
                                                                       .max_message = 200,
                                                                       .max_buffered = 100 << 10}),
                                   &server, NULL) != TETHER_OK;
}

static void client_is_dropped_when_it_exceeds_configured_limits(void **state)
{
    (void)state;
    static const struct step table[] = {
        STEP("\x00"
             "\x0c\0\0\0\0\0\0\0",
             ""), /* key of 12 with its "/" */
        STEP("\x00" U64_1 "k"
             "\x65\0\0\0\0\0\0\0",
             ""),               /* value of 101 */
        STEP("\x05" U64_4, ""), /* four keys */
        STEP(VALIDATE "\x02" U64_1 "k"
                      "\x60\0\0\0\0\0\0\0" /* 96 */
                      "0123456789abcdef0123456789abcdef0123456789abcdef"
                      "0123456789abcdef0123456789abcdef0123456789abcdef"
                      "\x64\0\0\0\0\0\0\0",
             ""), /* and 100: over 200 */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int fd = dial();
        raw_send(fd, table[i].request, table[i].request_len);
        raw_expect_closed(fd, __FILE__, (int)i);
    }
}

/* The bytes held for all clients together stay below the limit of the server. */
static void buffers_of_all_clients_are_bounded(void **state)
{
    (void)state;
    int fds[200];
    for (int i = 0; i < 200; i++) {
        fds[i] = dial_v();
        char half[1 + 9 + 8 + 99] = "\x01" U64_1
                                    "k"
                                    "\x64\0\0\0\0\0\0\0";
        send(fds[i], half, sizeof half, MSG_NOSIGNAL);
        assert_in_range(stats().buffered_bytes, 0, 200 << 10);
    }
    int fd = dial_v(); /* whole requests need no buffer */
    RAW_SEND(fd, "\x07");
    RAW_EXPECT(fd, U64_0);
    close(fd);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    assert_eventually(stats().clients == 0);
    assert_int_equal(stats().buffered_bytes, 0);
}

/* The memory of waits and watches counts, too. */
static void waits_of_all_clients_are_bounded(void **state)
{
    (void)state;
    enum { N = 400 };
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = i % 2 ? dial() : dial_v();
        if (i % 2) /* three keys each, again and again: the watches add up */
            for (int k = 0; k < 3; k++)
                send(fds[i], "\x07" U64_1 "w", 10, MSG_NOSIGNAL);
        else
            send(fds[i], "\x06" U64_3 U64_1 "x" U64_1 "y" U64_1 "z", 36, MSG_NOSIGNAL);
        assert_in_range(stats().buffered_bytes, 0, 110 << 10);
    }
    struct tether_store_server_stats now = stats();
    assert_in_range(now.waiting, 1, N / 2 - 1);
    assert_in_range(now.clients, 2, N - 1); /* some clients were dropped */
    for (int i = 0; i < N; i++)
        close(fds[i]);
    assert_eventually(stats().clients == 0);
    assert_int_equal(stats().buffered_bytes, 0);
    assert_int_equal(stats().waiting, 0);
}

#define WITH(test, setup) cmocka_unit_test_setup_teardown(test, setup, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(server_answers_requests_of_dialect_v, start),
        WITH(server_answers_dialect_v_when_bytes_come_one_by_one, start),
        WITH(server_answers_dialect_v_when_requests_come_at_once, start),
        WITH(list_keys_answers_all_keys_in_dialect_v, start),
        WITH(server_answers_requests_of_dialect_l0, start),
        WITH(server_answers_dialect_l0_when_bytes_come_one_by_one, start),
        WITH(server_answers_requests_of_dialect_l1, start),
        WITH(server_answers_dialect_l1_when_bytes_come_one_by_one, start),
        WITH(clients_share_keys_when_dialects_differ, start),
        WITH(append_of_l1_client_deletes_nothing_when_server_expects_l0, start),
        WITH(delete_of_l0_client_is_executed_when_nothing_follows, start),
        WITH(server_reads_l1_when_option_says_so, start_l1),
        WITH(wait_is_answered_when_keys_exist, start),
        WITH(wait_ends_when_client_cancels_it, start),
        WITH(wait_is_replaced_when_client_sends_a_second, start),
        WITH(barrier_is_answered_when_last_member_arrives, start),
        WITH(one_element_wakes_one_popper, start_patient),
        WITH(element_is_kept_for_the_popper_that_was_woken, start_patient),
        WITH(next_popper_is_woken_when_the_first_leaves_without_popping, start_impatient),
        WITH(waits_of_all_clients_end_when_key_gets_a_value, start),
        WITH(wait_ends_when_legacy_client_sends_a_request, start),
        WITH(watch_reports_every_change_of_its_key, start),
        WITH(client_is_dropped_when_it_sends_invalid_bytes, start),
        WITH(incomplete_requests_change_nothing_and_delay_no_client, start),
        WITH(memory_grows_with_received_bytes_when_length_is_large, start),
        WITH(server_accepts_values_of_64_mib, start),
        WITH(server_accepts_requests_of_many_keys, start),
        WITH(client_is_dropped_when_it_reads_no_replies, start_impatient),
        WITH(slow_client_gets_all_replies, start),
        WITH(watcher_is_dropped_when_it_reads_no_events, start),
        WITH(client_is_dropped_when_it_exceeds_configured_limits, start_small),
        WITH(buffers_of_all_clients_are_bounded, start_small),
        WITH(waits_of_all_clients_are_bounded, start_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
