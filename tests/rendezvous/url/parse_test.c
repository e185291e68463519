/* The URL parser: the parts of valid URLs, and the errors for invalid text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "rendezvous/url/url.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

/* `params` are the parameters of the query, as "key=value;" in order. */
static const struct good {
    const char *text, *scheme, *host;
    int port;
    const char *path, *params;
} good[] = {
    {"env://", "env", "", -1, "", ""},
    {"env://?rank=1", "env", "", -1, "", "rank=1;"},
    {"tcp://h:1", "tcp", "h", 1, "", ""},
    {"TCP://h:1", "tcp", "h", 1, "", ""},
    {"tcp://127.0.0.1:65535?rank=0&world_size=2", "tcp", "127.0.0.1", 65535, "",
     "rank=0;world_size=2;"},
    {"tcp://h", "tcp", "h", -1, "", ""},
    {"tcp://h:", "tcp", "h", -1, "", ""},
    {"tcp://h:0", "tcp", "h", 0, "", ""},
    {"tcp://h:00080/", "tcp", "h", 80, "/", ""},
    {"tcp://[::1]:29500", "tcp", "::1", 29500, "", ""},
    {"tcp://[::1]", "tcp", "::1", -1, "", ""},
    {"tcp://[fe80::1%25eth0]:7?rank=3", "tcp", "fe80::1%eth0", 7, "", "rank=3;"},
    {"file:///tmp/a", "file", "", -1, "/tmp/a", ""},
    {"file:////tmp/a", "file", "", -1, "//tmp/a", ""},
    {"file://localhost/tmp/a", "file", "localhost", -1, "/tmp/a", ""},
    {"file:///tmp/with%20space%25%3F%23?rank=0", "file", "", -1, "/tmp/with space%?#", "rank=0;"},
    {"file://foo?rank=12", "file", "foo", -1, "", "rank=12;"},
    {"etcd://h:2379/a/b?x=1&&y=2&", "etcd", "h", 2379, "/a/b", "x=1;y=2;"},
    {"etcd://h:2379/a?k%20y=v%3d%26w", "etcd", "h", 2379, "/a", "k y=v=&w;"},
    {"x+y-1.z://h/?a=b=c", "x+y-1.z", "h", -1, "/", "a=b=c;"},
    {"tcp://h:1?where=/a/b:2", "tcp", "h", 1, "", "where=/a/b:2;"},
};

static void parse_splits_urls(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(good); i++) {
        const struct good *want = &good[i];
        struct tether__url *url = NULL;
        tether_error err = {0};
        if (tether__url_parse(want->text, &url, &err) != TETHER_OK)
            fail_msg("%s: %s", want->text, err.message);
        assert_string_equal(url->scheme, want->scheme);
        assert_string_equal(url->host, want->host);
        assert_int_equal(url->port, want->port);
        assert_string_equal(url->path, want->path);
        char params[256] = "";
        for (size_t p = 0, used = 0; p < url->n_params; p++)
            used += (size_t)snprintf(params + used, sizeof params - used, "%s=%s;",
                                     url->params[p].key, url->params[p].value);
        assert_string_equal(params, want->params);
        assert_null(tether__url_free(url));
    }
}

static const struct bad {
    const char *text, *says;
} bad[] = {
    {"", "is not a URL: write scheme://"},
    {"host:29500", "is not a URL"},
    {"tcp:/host:1", "is not a URL"},
    {"://host:1", "is not a URL"},
    {"1tcp://host:1", "is not a URL"},
    {"t_p://host:1", "is not a URL"},
    {"tcp://h:65536", "the port is 65536: give a number from 0 to 65535"},
    {"tcp://h:99999999999999999999", "give a number from 0 to 65535"},
    {"tcp://h:-1", "port '-1' is not a number"},
    {"tcp://h:+1", "port '+1' is not a number"},
    {"tcp://h:8o", "port '8o' is not a number"},
    {"tcp://::1:29500", "write an IPv6 address in brackets"},
    {"tcp://[::1:29500", "check the brackets"},
    {"tcp://[::1]29500", "check the brackets"},
    {"tcp://[::g]:1", "is not an IPv6 address"},
    {"tcp://[127.0.0.1]:1", "is not an IPv6 address"},
    {"tcp://[]:1", "is not an IPv6 address"},
    {"tcp://[::1%2]:1", "not % and two hexadecimal digits"},
    {"tcp://me:secret@h:1", "names a user before '@'"},
    {"tcp://h:1?rank", "query parameter 'rank' has no value: write key=value"},
    {"tcp://h:1?rank=", "query parameter 'rank=' has no value"},
    {"tcp://h:1?=1", "has no value"},
    {"tcp://h:1?rank=0&rank=1", "query parameter rank is given twice"},
    {"tcp://h:1?r%61nk=0&rank=1", "query parameter rank is given twice"},
    {"tcp://h:1?a=%zz", "'%zz' in the URL is not % and two hexadecimal digits"},
    {"tcp://h:1?a=%4", "not % and two hexadecimal digits"},
    {"file:///a%", "write %25 for a percent sign"},
    {"file:///a%00b", "contains %00"},
    {"file:///a b",
     "character 10 of the URL is white space or a control character: write it as %20"},
    {"file:///a\n", "write it as %0A"},
    {"file:///a#b", "write %23"},
};

static void parse_refuses_malformed_urls_with_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(bad); i++) {
        struct tether__url *url = NULL;
        tether_error err = {0};
        assert_int_equal(tether__url_parse(bad[i].text, &url, &err), TETHER_EINVAL);
        assert_null(url);
        if (!strstr(err.message, bad[i].says))
            fail_msg("'%s' gives '%s', without '%s'", bad[i].text, err.message, bad[i].says);
        assert_int_equal(tether__url_parse(bad[i].text, &url, NULL), TETHER_EINVAL);
    }
}

static void parse_refuses_long_urls(void **state)
{
    (void)state;
    static char text[TETHER__URL_MAX + 2] = "file:///";
    memset(text + 8, 'a', sizeof text - 9);
    struct tether__url *url = NULL;
    tether_error err = {0};
    assert_int_equal(tether__url_parse(text, &url, &err), TETHER_EINVAL);
    assert_string_equal(err.message, "the URL is longer than 4096 characters");
    text[TETHER__URL_MAX] = '\0';
    assert_int_equal(tether__url_parse(text, &url, &err), TETHER_OK);
    tether__url_free(url);
}

static void param_finds_parameters(void **state)
{
    (void)state;
    static const char *const known[] = {"rank", "world_size", NULL};
    struct tether__url *url = NULL;
    tether_error err = {0};
    assert_int_equal(tether__url_parse("tcp://h:1?rank=7&worldsize=2", &url, &err), TETHER_OK);
    assert_string_equal(tether__url_param(url, "rank"), "7");
    assert_null(tether__url_param(url, "ran"));
    assert_int_equal(tether__url_check_params(url, known, &err), TETHER_EINVAL);
    assert_string_equal(err.message,
                        "tcp:// does not know query parameter 'worldsize', only rank, world_size");
    tether__url_free(url);
}

static void parse_int_reads_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tether_status status;
        int value;
    } rows[] = {
        {"0", TETHER_OK, 0},
        {"12", TETHER_OK, 12},
        {"", TETHER_EINVAL, 0},
        {" 1", TETHER_EINVAL, 0},
        {"1 ", TETHER_EINVAL, 0},
        {"x", TETHER_EINVAL, 0},
        {"-1", TETHER_EINVAL, 0},
        {"13", TETHER_EINVAL, 0},
        {"99999999999999999999", TETHER_EINVAL, 0},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        int value = -5;
        tether_error err = {0};
        assert_int_equal(tether__parse_int(rows[i].text, "n", 0, 12, &value, &err), rows[i].status);
        assert_int_equal(value, rows[i].status == TETHER_OK ? rows[i].value : -5);
    }
}

static tether_status parse_once(void *userdata)
{
    struct tether__url *url = NULL;
    tether_status st = tether__url_parse(userdata, &url, NULL);
    tether__url_free(url);
    return st;
}

static void parse_reports_failed_allocations(void **state)
{
    (void)state;
    char text[] = "tcp://[::1]:1?rank=0&world_size=2";
    tether_test_heap_fail_each(parse_once, text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse_splits_urls),
        cmocka_unit_test(parse_refuses_malformed_urls_with_reason),
        cmocka_unit_test(parse_refuses_long_urls),
        cmocka_unit_test(param_finds_parameters),
        cmocka_unit_test(parse_int_reads_numbers),
        cmocka_unit_test(parse_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
