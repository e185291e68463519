/* The dialer's transitions, without sockets. `now` is the test's. */
#include "rpc/peer/connect/dialer.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/macros.h"
#include "tests/lib/cmocka.h"

enum { LEASE_MS = 8000 };

static const int64_t now = 0; /* no pause is shortened at this time */

static struct tether__dialer start(void)
{
    struct tether__dialer dialer;
    tether__dialer_init(&dialer);
    return dialer;
}

static struct tether__worker_record record_of(uint64_t incarnation)
{
    struct tether__worker_record record = {.incarnation = incarnation};
    snprintf(record.name, sizeof record.name, "w1");
    return record;
}

static int64_t back_off(struct tether__dialer *dialer)
{
    return tether__dialer_back_off(dialer, now, now, LEASE_MS) / TETHER__NS_PER_MS;
}

/* Brings a new dialer into the state. */
static struct tether__dialer in_state(enum tether__dialer_state state)
{
    struct tether__dialer dialer = start();
    switch (state) {
        case TETHER__DIALER_RESOLVING:
            tether__dialer_asked(&dialer);
            break;
        case TETHER__DIALER_BACKING_OFF:
            back_off(&dialer);
            break;
        case TETHER__DIALER_CONNECTING:
            tether__dialer_dial(&dialer, true);
            break;
        case TETHER__DIALER_CONNECTED:
            tether__dialer_dial(&dialer, true);
            tether__dialer_up(&dialer);
            break;
        case TETHER__DIALER_STOPPED:
            tether__dialer_stop(&dialer);
            break;
        default:
            break;
    }
    assert_int_equal(dialer.state, state);
    return dialer;
}

static void set_timer(struct tether__dialer *dialer)
{
    back_off(dialer);
}

static void dial(struct tether__dialer *dialer)
{
    tether__dialer_dial(dialer, true);
}

/* The states in the order of the enum. */
static const struct {
    const char *event;
    void (*send)(struct tether__dialer *dialer);
    const char *next; /* of each state, its first two letters */
} rows[] = {
    {"timer set", set_timer, "BA BA BA CI CU ST"},
    {"timer cleared", tether__dialer_restart, "ID RE ID CI CU ST"},
    {"asked", tether__dialer_asked, "RE RE BA CI CU ST"},
    {"answered", tether__dialer_answered, "ID ID BA CI CU ST"},
    {"dialled", dial, "CI CI CI CI CU ST"},
    {"up", tether__dialer_up, "ID RE BA CU CU ST"},
    {"down", tether__dialer_down, "ID RE BA CI CI ST"},
    {"closed", tether__dialer_closed, "ID RE BA ID ID ST"},
    {"broke", tether__dialer_broke, "ID RE BA ID ID ST"},
    {"session ended", tether__dialer_session_ended, "ID RE ID CI CU ST"},
    {"stop", tether__dialer_stop, "ST ST ST ST ST ST"},
};

static void event_leads_to_state_of_the_table(void **state)
{
    static const char letters[][3] = {"ID", "RE", "BA", "CI", "CU", "ST"};
    (void)state;
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++)
        for (int from = 0; from < TETHER__N_DIALER_STATES; from++) {
            struct tether__dialer dialer = in_state((enum tether__dialer_state)from);
            rows[i].send(&dialer);
            char expected[3] = {rows[i].next[from * 3], rows[i].next[from * 3 + 1]};
            if (strcmp(letters[dialer.state], expected) != 0)
                fail_msg("'%s' leads from %s to %s, not %s", rows[i].event, letters[from],
                         letters[dialer.state], expected);
        }
}

/* ---- A connection closes while something else is under way ---- */

static void dialer_backs_off_when_timer_is_left(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTED);
    assert_true(tether__dialer_ask_at(&dialer, 5));
    assert_int_equal(dialer.state, TETHER__DIALER_CONNECTED);
    tether__dialer_closed(&dialer);
    assert_int_equal(dialer.state, TETHER__DIALER_BACKING_OFF);
    assert_int_equal(dialer.due, 5);
}

static void dialer_resolves_when_look_up_is_left(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTED);
    tether__dialer_asked(&dialer);
    tether__dialer_closed(&dialer);
    assert_int_equal(dialer.state, TETHER__DIALER_RESOLVING);
    assert_false(tether__dialer_may_begin(&dialer, false));
    assert_true(tether__dialer_may_begin(&dialer, true));
    back_off(&dialer);
    assert_false(tether__dialer_may_begin(&dialer, true));
    tether__dialer_answered(&dialer);
    assert_int_equal(dialer.state, TETHER__DIALER_BACKING_OFF);
}

static void dialer_begins_only_when_nothing_is_under_way(void **state)
{
    (void)state;
    for (int i = 0; i < TETHER__N_DIALER_STATES; i++) {
        struct tether__dialer dialer = in_state((enum tether__dialer_state)i);
        assert_int_equal(tether__dialer_may_begin(&dialer, false), i == TETHER__DIALER_IDLE);
        assert_int_equal(tether__dialer_has_conn(&dialer),
                         i == TETHER__DIALER_CONNECTING || i == TETHER__DIALER_CONNECTED);
        assert_int_equal(tether__dialer_is_at_rest(&dialer),
                         i == TETHER__DIALER_IDLE || i == TETHER__DIALER_STOPPED);
    }
}

static void dialer_forgets_timer_when_it_dials(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_BACKING_OFF);
    tether__dialer_dial(&dialer, true);
    assert_int_equal(dialer.due, TETHER__NEVER);
}

/* ---- Look-ups ---- */

static void dialer_asks_only_when_address_is_unknown_or_old(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_BACKING_OFF);
    assert_true(tether__dialer_on_due(&dialer, false, true));
    assert_false(tether__dialer_on_due(&dialer, false, false));
    assert_false(tether__dialer_on_due(&dialer, true, true));
    tether__dialer_doubt(&dialer, "it moved");
    assert_true(tether__dialer_on_due(&dialer, true, true));
    assert_string_equal(dialer.last_error, "it moved");
    struct tether__worker_record record = record_of(3);
    tether__dialer_learn(&dialer, &record);
    assert_false(tether__dialer_on_due(&dialer, true, true));
}

static void dialer_does_not_ask_twice(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTED);
    assert_true(tether__dialer_ask_at(&dialer, 5));
    assert_false(tether__dialer_ask_at(&dialer, 6));
    assert_int_equal(dialer.due, 5);
    dialer = in_state(TETHER__DIALER_RESOLVING);
    assert_false(tether__dialer_ask_at(&dialer, 5));
    dialer = in_state(TETHER__DIALER_STOPPED);
    assert_false(tether__dialer_ask_at(&dialer, 5));
}

static void dialer_knows_records_of_this_start_and_later_ones(void **state)
{
    (void)state;
    struct tether__dialer dialer = start();
    struct tether__worker_record record = record_of(3);
    assert_false(tether__dialer_knows(&dialer, 0));
    tether__dialer_learn(&dialer, &record);
    assert_true(tether__dialer_knows(&dialer, 3));
    assert_false(tether__dialer_knows(&dialer, 4));
}

static void record_is_doubted_when_handshake_breaks(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTED);
    tether__dialer_broke(&dialer);
    assert_false(dialer.record_is_old);
    dialer = in_state(TETHER__DIALER_CONNECTING);
    tether__dialer_closed(&dialer);
    assert_false(dialer.record_is_old);
    dialer = in_state(TETHER__DIALER_CONNECTING);
    tether__dialer_broke(&dialer);
    assert_true(dialer.record_is_old);
}

/* ---- Pauses ---- */

static void pauses_double_up_to_a_quarter_of_a_lease(void **state)
{
    (void)state;
    static const int pauses[] = {0, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000};
    struct tether__dialer dialer = start();
    for (size_t i = 0; i < TETHER__ARRAY_LEN(pauses); i++)
        assert_int_equal(back_off(&dialer), pauses[i]);
    tether__dialer_met(&dialer);
    assert_int_equal(back_off(&dialer), 0);
    tether__dialer_back_off(&dialer, now, now, 120);
    tether__dialer_back_off(&dialer, now, now, 120);
    assert_int_equal(dialer.backoff_ms, 30);
}

static void pause_is_shortened_by_a_quarter_at_most(void **state)
{
    (void)state;
    for (int64_t at = 0; at < 100; at++) {
        struct tether__dialer dialer = start();
        dialer.backoff_ms = 40;
        int64_t pause = tether__dialer_back_off(&dialer, 0, at * 1000, LEASE_MS);
        assert_in_range(pause, 30 * TETHER__NS_PER_MS, 40 * TETHER__NS_PER_MS);
    }
}

static void delay_moves_a_timer_that_is_set(void **state)
{
    (void)state;
    struct tether__dialer dialer = start();
    tether__dialer_delay(&dialer, 7);
    assert_int_equal(dialer.due, TETHER__NEVER);
    tether__dialer_back_off(&dialer, 100, now, LEASE_MS);
    tether__dialer_delay(&dialer, 7);
    assert_int_equal(dialer.due, 107);
}

/* ---- Route ---- */

static void route_is_local_only_when_the_peer_is_here(void **state)
{
    (void)state;
    struct tether__dialer dialer = start();
    assert_int_equal(tether__dialer_dial(&dialer, true), TETHER__LOCAL_ROUTE);
    dialer = start();
    assert_int_equal(tether__dialer_dial(&dialer, false), TETHER__NETWORK_ROUTE);
}

static void route_changes_once_when_no_handshake_was_done(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTING);
    tether__dialer_broke(&dialer);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tether__dialer_dial(&dialer, true), TETHER__NETWORK_ROUTE);
        tether__dialer_closed(&dialer);
    }
}

static void route_stays_local_after_first_handshake(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTED);
    for (int i = 0; i < 3; i++) {
        tether__dialer_broke(&dialer);
        assert_int_equal(tether__dialer_dial(&dialer, true), TETHER__LOCAL_ROUTE);
    }
}

static void route_is_chosen_anew_for_another_start(void **state)
{
    (void)state;
    struct tether__dialer dialer = start();
    struct tether__worker_record first = record_of(3), second = record_of(4);
    tether__dialer_learn(&dialer, &first);
    tether__dialer_dial(&dialer, true);
    tether__dialer_closed(&dialer);
    tether__dialer_learn(&dialer, &first);
    assert_int_equal(tether__dialer_dial(&dialer, true), TETHER__NETWORK_ROUTE);
    assert_int_equal(dialer.dialled_start, 3);
    tether__dialer_closed(&dialer);
    tether__dialer_learn(&dialer, &second);
    assert_int_equal(tether__dialer_dial(&dialer, true), TETHER__LOCAL_ROUTE);
    assert_int_equal(dialer.dialled_start, 4);
}

static void route_is_chosen_anew_when_session_has_ended(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTING);
    tether__dialer_closed(&dialer);
    tether__dialer_session_ended(&dialer);
    assert_int_equal(tether__dialer_dial(&dialer, true), TETHER__LOCAL_ROUTE);
}

/* The connection of the ended session is that of the next one. */
static void route_stays_when_session_ends_and_connection_does_not(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTED);
    tether__dialer_session_ended(&dialer);
    tether__dialer_down(&dialer);
    assert_int_equal(dialer.route, TETHER__LOCAL_ROUTE);
    tether__dialer_broke(&dialer);
    assert_int_equal(tether__dialer_dial(&dialer, true), TETHER__NETWORK_ROUTE);
}

/* ---- Errors ---- */

static void errors_are_cleared_when_the_peer_is_met(void **state)
{
    (void)state;
    struct tether__dialer dialer = in_state(TETHER__DIALER_CONNECTING);
    tether__dialer_explain(&dialer, "refused");
    tether_error_set(&dialer.refusal, TETHER_EPERM, "not wanted");
    tether__dialer_met(&dialer);
    assert_string_equal(dialer.last_error, "");
    assert_int_equal(dialer.refusal.code, TETHER_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(event_leads_to_state_of_the_table),
        cmocka_unit_test(dialer_backs_off_when_timer_is_left),
        cmocka_unit_test(dialer_resolves_when_look_up_is_left),
        cmocka_unit_test(dialer_begins_only_when_nothing_is_under_way),
        cmocka_unit_test(dialer_forgets_timer_when_it_dials),
        cmocka_unit_test(dialer_asks_only_when_address_is_unknown_or_old),
        cmocka_unit_test(dialer_does_not_ask_twice),
        cmocka_unit_test(dialer_knows_records_of_this_start_and_later_ones),
        cmocka_unit_test(record_is_doubted_when_handshake_breaks),
        cmocka_unit_test(pauses_double_up_to_a_quarter_of_a_lease),
        cmocka_unit_test(pause_is_shortened_by_a_quarter_at_most),
        cmocka_unit_test(delay_moves_a_timer_that_is_set),
        cmocka_unit_test(route_is_local_only_when_the_peer_is_here),
        cmocka_unit_test(route_changes_once_when_no_handshake_was_done),
        cmocka_unit_test(route_stays_local_after_first_handshake),
        cmocka_unit_test(route_is_chosen_anew_for_another_start),
        cmocka_unit_test(route_is_chosen_anew_when_session_has_ended),
        cmocka_unit_test(route_stays_when_session_ends_and_connection_does_not),
        cmocka_unit_test(errors_are_cleared_when_the_peer_is_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
