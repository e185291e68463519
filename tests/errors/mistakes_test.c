/* Every common mistake is told as it should be: with the right code, in one whole sentence that
 * says what is wrong, where, and what to do, and in time. The tables are in *_mistakes.c. */
#include "tests/errors/mistakes.h"

#include <ctype.h>
#include <string.h>

#include "base/clock.h"
#include "tests/lib/cmocka.h"

#define MOST 128
#define LIMIT_MS                                                                     \
    30000 /* half of what a call may last by default: it was not that which ended it \
           */

static void says(const tether_error *err, const char *part, const char *words)
{
    if (words && !strstr(err->message, words))
        fail_msg("it does not say %s ('%s')", part, words);
}

static void is_one_sentence(const char *text)
{
    size_t len = strlen(text);
    assert_true(len > 2);
    assert_null(strchr(text, '\n'));
    if (text[len - 1] == '.')
        fail_msg("it ends with a full stop, or has been cut");
    for (const char *stop = text + 2; (stop = strstr(stop, ". ")); stop += 2)
        if (isupper((unsigned char)stop[2]) && strncmp(stop - 2, "...", 3) != 0)
            fail_msg("it is more than one sentence");
}

static void error_names_problem_place_and_remedy(void **state)
{
    const struct mistake *mistake = *state;
    tether_error err = {0};
    int64_t start = tether__clock_now_ns(&tether__clock_system);
    tether_status st = mistake->make(&err);
    int64_t ms = (tether__clock_now_ns(&tether__clock_system) - start) / TETHER__NS_PER_MS;
    print_message("%s: %s\n", tether_status_name(st), err.message);
    if (st != mistake->code)
        fail_msg("%s, not %s", tether_status_name(st), tether_status_name(mistake->code));
    assert_int_equal(err.code, st);
    is_one_sentence(err.message);
    says(&err, "what is wrong", mistake->what);
    says(&err, "where", mistake->where);
    says(&err, "what to do", mistake->what_to_do);
    assert_true(mistake->what_to_do || st == TETHER_EREMOTE);
    if (ms > LIMIT_MS)
        fail_msg("it took %lld ms", (long long)ms);
}

static size_t add_all(struct CMUnitTest *tests, size_t n, const struct mistake *mistakes)
{
    for (const struct mistake *m = mistakes; m->name; m++) {
        assert_true(n < MOST);
        tests[n++] = (struct CMUnitTest){.name = m->name,
                                         .test_func = error_names_problem_place_and_remedy,
                                         .initial_state = (void *)m};
    }
    return n;
}

int main(void)
{
    struct CMUnitTest tests[MOST];
    size_t n = 0;
    n = add_all(tests, n, agent_mistakes);
    n = add_all(tests, n, meeting_mistakes);
    n = add_all(tests, n, reference_mistakes);
    n = add_all(tests, n, security_mistakes);
    return _cmocka_run_group_tests("mistakes", tests, n, NULL, NULL);
}
