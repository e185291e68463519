/* The rule by which pollers spin: how many of the next polls do, after what has happened. */
#include "rpc/transport/spin.h"

#include "base/macros.h"
#include "tests/lib/cmocka.h"

enum { SOON = 5000, LATE = 3000000 }; /* ns */

/* `history` has a letter for each event: m a spin without an event, h an event in time, t an event
 * after another poller's turn; a digit repeats the letter before it. Polls that must not spin are
 * skipped.
 */
static void play(struct tether__spin *spin, const char *history)
{
    for (const char *at = history; *at; at++) {
        int times = at[1] >= '1' && at[1] <= '9' ? at[1] - '0' : 1;
        for (int i = 0; i < times; i++) {
            while (!tether__spin_may(spin)) {
            }
            if (*at == 'm')
                tether__spin_missed(spin);
            else
                tether__spin_hit(spin, *at == 't' ? LATE : SOON);
        }
        at += times > 1;
    }
}

/* The number of polls that block at once before one spins again. */
static int n_skipped(struct tether__spin *spin)
{
    int n = 0;
    while (!tether__spin_may(spin))
        n++;
    return n;
}

static void poller_spins_only_when_spinning_finds_events(void **state)
{
    (void)state;
    static const struct {
        const char *history;
        int skipped;
    } rows[] = {
        {"", 0},        {"h9", 0},    {"m4", 0}, /* may happen */
        {"m5", 2},                               /* does not pay */
        {"m6", 4},                               /* and again not */
        {"m9m9", 1024},                          /* but now and then a spin is tried again */
        {"m9m9h", 0},                            /* it pays again */
        {"m9h9m4", 0},                           /* earlier events are forgotten */
        {"m4hm", 0},               /* a successful spin makes up for an unsuccessful one */
        {"m4hm2", 2},   {"t", 64}, /* others want the CPU */
        {"h9t", 64},               /* however well it went before */
        {"t2", 128},    {"t9", 1024}, {"tht", 64}, /* to be lucky once says little */
        {"th9h9m4", 0},
    };
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        struct tether__spin spin = {.ns = 50000};
        play(&spin, rows[i].history);
        int skipped = n_skipped(&spin);
        if (skipped != rows[i].skipped)
            fail_msg("after \"%s\" %d polls are skipped, not %d", rows[i].history, skipped,
                     rows[i].skipped);
    }
}

static void poller_never_spins_when_spin_time_is_zero(void **state)
{
    (void)state;
    struct tether__spin spin;
    tether__spin_init(&spin, 0);
    for (int i = 0; i < 5000; i++)
        assert_false(tether__spin_may(&spin));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poller_spins_only_when_spinning_finds_events),
        cmocka_unit_test(poller_never_spins_when_spin_time_is_zero),
    };
    return cmocka_run_group_tests_name("spin", tests, NULL, NULL);
}
