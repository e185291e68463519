/* Addresses as text. */
#include "net/address.h"

#include <string.h>

#include "base/macros.h"
#include "tests/lib/cmocka.h"

static void split_accepts_hosts_with_and_without_port(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        bool is_ipv6;
        int port;
    } rows[] = {
        {"host", "host", false, TETHER__ADDRESS_NO_PORT},
        {"host:0", "host", false, 0},
        {"127.0.0.1:65535", "127.0.0.1", false, 65535},
        {"[::1]", "::1", true, TETHER__ADDRESS_NO_PORT},
        {"[fe80::1%eth0]:29500", "fe80::1%eth0", true, 29500},
        {"a.b.c:0080", "a.b.c", false, 80},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__address address;
        assert_true(tether__address_split(rows[i].text, strlen(rows[i].text), &address));
        assert_int_equal(address.host_len, strlen(rows[i].host));
        assert_memory_equal(address.host, rows[i].host, address.host_len);
        assert_int_equal(address.is_ipv6, rows[i].is_ipv6);
        assert_int_equal(address.port, rows[i].port);
    }
}

static void split_refuses_malformed_addresses(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",        ":80",     "[]:80",   "[::1",       "[::1]80",
        "::1",     "a:b:1",   "host:",   "host:x",     "host:1x",
        "host:-1", "host:+1", "host: 1", "host:65536", "host:99999999999999999999",
        "[::1]:",
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(texts); i++) {
        struct tether__address address;
        if (tether__address_split(texts[i], strlen(texts[i]), &address))
            fail_msg("'%s' was accepted", texts[i]);
    }
}

static void split_reads_no_further_than_given_length(void **state)
{
    (void)state;
    struct tether__address address;
    assert_true(tether__address_split("host:12,more:34", 7, &address));
    assert_int_equal(address.port, 12);
    assert_int_equal(address.host_len, 4);
    assert_false(tether__address_split("[::1]", 4, &address));
}

static void loopback_is_recognised_without_lookup(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool loopback;
    } rows[] = {
        {"localhost", true},         {"localhost:1", true},
        {"127.0.0.1:1", true},       {"127.9.9.9", true},
        {"[::1]:1", true},           {"[::2]:1", false},
        {"128.0.0.1", false},        {"127.host", false},
        {"127.evil.example", false}, {"localhost.example", false},
        {"[localhost]", false},      {"0.0.0.0:1", false},
        {"[::]:1", false},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__address address;
        assert_true(tether__address_split(rows[i].text, strlen(rows[i].text), &address));
        if (tether__address_is_loopback(&address) != rows[i].loopback)
            fail_msg("'%s' is judged wrongly", rows[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_accepts_hosts_with_and_without_port),
        cmocka_unit_test(split_refuses_malformed_addresses),
        cmocka_unit_test(split_reads_no_further_than_given_length),
        cmocka_unit_test(loopback_is_recognised_without_lookup),
    };
    return cmocka_run_group_tests_name("address", tests, NULL, NULL);
}
