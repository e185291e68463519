/* The store server with raw bytes: each dialect, whole and in pieces, and invalid requests. */
#include <unistd.h>

#include "rendezvous/store_tcp.h"
#include "tests/rendezvous/store/suite_internal.h"
#include "tests/rendezvous/store/tcp/raw.h"
#include "tests/rendezvous/store/tcp/raw_server.h"

static int start_l1(void **state)
{
    (void)state;
    raw_server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.legacy_is_l1 = true), &raw_server,
                                   NULL) != TETHER_OK;
}

/* ---- Each dialect, request by request ------------------------------------------------------- */

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
    int fd = raw_server_dial();
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
    int fd = raw_server_dial_v();
    RAW_SEND(fd, "\x11");
    RAW_EXPECT(fd, U64_0);
    RAW_SEND(fd, "\x01" U64_2 "/k" U64_0 "\x11");
    RAW_EXPECT(fd, U64_1 U64_2 "/k");
    close(fd);
}

static void speak_l0(enum how how)
{
    int fd = raw_server_dial();
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
    int fd = raw_server_dial();
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
    int v = raw_server_dial_v(), l0 = raw_server_dial(), l1 = raw_server_dial();
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
    int fd = raw_server_dial();
    RAW_SEND(fd, "\x00" U64_2 "/a" U64_2 "po\x08" U64_2 "/a" U64_4 "tato\x02" U64_2 "/a");
    RAW_EXPECT(fd, U64_6 "potato");
    close(fd);
}

static void delete_of_l0_client_is_executed_when_nothing_follows(void **state)
{
    (void)state;
    int fd = raw_server_dial(), other = raw_server_dial();
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
    int fd = raw_server_dial();
    RAW_SEND(fd, "\x08" U64_2 "/a" U64_2 "po\x02" U64_2 "/a");
    RAW_EXPECT(fd, U64_2 "po");
    close(fd);
    fd = raw_server_dial();
    RAW_SEND(fd, "\x07" U64_2 "/a");
    RAW_EXPECT(fd, U64_1);
    close(fd);
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
        int fd = raw_server_dial();
        raw_send(fd, table[i].request, table[i].request_len);
        raw_expect_closed(fd, __FILE__, (int)i);
    }
    struct tether_store_server_stats now = raw_server_stats();
    assert_int_equal(now.malformed, sizeof table / sizeof table[0]);
    assert_int_equal(now.buffered_bytes, 0);
    int fd =
        raw_server_dial_v(); /* the only key is the one that two of the steps have set before */
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
        fds[i] = raw_server_dial_v();
        const struct step *step = &v_steps[i];
        raw_send(fds[i], step->request, step->request_len / 2);
    }
    int last = raw_server_dial_v();
    RAW_SEND(last, "\x0b" U64_2 U64_2 "/x" U64_1 "1" U64_2 "/y" U64_5 "1234"); /* a byte short */
    int fd = raw_server_dial_v();
    RAW_SEND(fd, "\x05" U64_1 U64_2 "/x\x07");
    RAW_EXPECT(fd, "\1" U64_0);
    RAW_SEND(last, "5\x07\x08" U64_2 "/x\x08" U64_2 "/y");
    RAW_EXPECT(last, U64_2 U64_1 U64_1);
    close(fd), close(last);
    speak_v(WHOLE);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    assert_eventually(raw_server_stats().clients == 0);
    assert_int_equal(raw_server_stats().buffered_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(server_answers_requests_of_dialect_v, raw_server_start),
        WITH(server_answers_dialect_v_when_bytes_come_one_by_one, raw_server_start),
        WITH(server_answers_dialect_v_when_requests_come_at_once, raw_server_start),
        WITH(list_keys_answers_all_keys_in_dialect_v, raw_server_start),
        WITH(server_answers_requests_of_dialect_l0, raw_server_start),
        WITH(server_answers_dialect_l0_when_bytes_come_one_by_one, raw_server_start),
        WITH(server_answers_requests_of_dialect_l1, raw_server_start),
        WITH(server_answers_dialect_l1_when_bytes_come_one_by_one, raw_server_start),
        WITH(clients_share_keys_when_dialects_differ, raw_server_start),
        WITH(append_of_l1_client_deletes_nothing_when_server_expects_l0, raw_server_start),
        WITH(delete_of_l0_client_is_executed_when_nothing_follows, raw_server_start),
        WITH(server_reads_l1_when_option_says_so, start_l1),
        WITH(client_is_dropped_when_it_sends_invalid_bytes, raw_server_start),
        WITH(incomplete_requests_change_nothing_and_delay_no_client, raw_server_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
