/* Mistakes with references to objects on other workers. */
#include "rref/rref.h"
#include "tests/errors/mistakes.h"
#include "tests/errors/pair.h"
#include "tests/lib/cmocka.h"

/* a has b make an object with `fn`; then `use` does the wrong thing with it. */
static tether_status refer(const char *fn,
                           tether_status (*use)(struct pair *pair,
                                                tether_rref *rref,
                                                tether_error *err),
                           tether_error *err)
{
    struct pair pair = pair_start(OPTS(0), OPTS(0));
    tether_rref *rref = tether_remote(pair.a, "b", fn, NULL, TETHER_DEFAULT_MS);
    tether_status st = use(&pair, rref, err);
    tether_rref_release(rref);
    pair_stop(&pair);
    return st;
}

static void await_confirmed(tether_rref *rref)
{
    tether_future *confirmed = tether_rref_confirmed(rref);
    assert_int_equal(tether_future_wait(confirmed, TETHER_DEFAULT_MS, NULL, NULL), TETHER_OK);
    tether_future_release(confirmed);
}

static tether_status fetch(struct pair *pair, tether_rref *rref, tether_error *err)
{
    (void)pair;
    return tether_rref_to_here(rref, TETHER_DEFAULT_MS, NULL, err);
}

static tether_status fetch_in_no_time(struct pair *pair, tether_rref *rref, tether_error *err)
{
    (void)pair;
    return tether_rref_to_here(rref, 100, NULL, err);
}

static tether_status fetch_with_timeout_of_minus_7(struct pair *pair,
                                                   tether_rref *rref,
                                                   tether_error *err)
{
    (void)pair;
    tether_future *future = tether_rref_async(rref, "open", NULL, -7);
    assert_int_equal(tether_future_wait(future, 0, NULL, NULL), TETHER_EINVAL);
    assert_int_equal(tether_future_wait(future, -7, NULL, NULL), TETHER_EINVAL);
    tether_future_release(future);
    tether_rref *spawned = tether_rref_remote(rref, "open", NULL, -7);
    assert_int_equal(tether_rref_to_here(spawned, 0, NULL, NULL), TETHER_EINVAL);
    tether_rref_release(spawned);
    return tether_rref_to_here(rref, -7, NULL, err);
}

static tether_status look_at(struct pair *pair, tether_rref *rref, tether_error *err)
{
    (void)pair;
    tether_value *value;
    return tether_rref_local_value(rref, &value, err);
}

static tether_status call_method(struct pair *pair, tether_rref *rref, tether_error *err)
{
    (void)pair;
    return tether_rref_sync(rref, "open", NULL, TETHER_DEFAULT_MS, NULL, err);
}

static tether_status fetch_after_shutdown(struct pair *pair, tether_rref *rref, tether_error *err)
{
    await_confirmed(rref);
    tether_agent_shutdown(pair->a, true, NULL);
    return fetch(pair, rref, err);
}

static tether_status fetch_when_owner_has_left(struct pair *pair,
                                               tether_rref *rref,
                                               tether_error *err)
{
    await_confirmed(rref);
    pair->b = tether_agent_release(pair->b);
    return tether_rref_to_here(rref, PATIENCE_MS, NULL, err);
}

MISTAKE(reference_to_what_could_not_be_made)
{
    return refer("oops", fetch, err);
}
MISTAKE(reference_made_by_no_function)
{
    return refer("ehco", fetch, err);
}
MISTAKE(fetch_of_what_cannot_be_copied)
{
    return refer("lock", fetch, err);
}
MISTAKE(fetch_of_what_is_never_made)
{
    return refer("nap", fetch_in_no_time, err);
}
MISTAKE(local_value_of_what_is_not_local)
{
    return refer("lock", look_at, err);
}
MISTAKE(method_that_the_type_has_not)
{
    return refer("lock", call_method, err);
}
MISTAKE(method_of_plain_bytes)
{
    return refer("echo", call_method, err);
}
MISTAKE(use_after_shutdown)
{
    return refer("echo", fetch_after_shutdown, err);
}
MISTAKE(owner_that_has_left)
{
    return refer("echo", fetch_when_owner_has_left, err);
}

MISTAKE(reference_never_released)
{
    struct pair pair = pair_start(OPTS(.fail_on_leaks = true), OPTS(0));
    tether_rref *rref = tether_remote(pair.a, "b", "echo", NULL, TETHER_DEFAULT_MS);
    await_confirmed(rref);
    tether_status st = tether_agent_shutdown(pair.a, true, err);
    tether_rref_release(rref);
    pair_stop(&pair);
    return st;
}

MISTAKE(fetch_with_negative_timeout)
{
    return refer("nap", fetch_with_timeout_of_minus_7, err);
}

const struct mistake reference_mistakes[] = {
    ROW(fetch_with_negative_timeout, EINVAL, "timeout_ms is -7", "timeout_ms", "-1 for no limit"),
    ROW(reference_to_what_could_not_be_made, EREMOTE, "the disk is full", "'b'", NULL),
    ROW(reference_made_by_no_function,
        ENOTFOUND,
        "no function named 'ehco'",
        "'b'",
        "register it there"),
    ROW(fetch_of_what_cannot_be_copied,
        ENOTSUP,
        "cannot be copied",
        "type 'locked'",
        "pass a reference instead"),
    ROW(fetch_of_what_is_never_made, ETIMEOUT, "timed out", "'b'", "time"),
    ROW(local_value_of_what_is_not_local, EINVAL, "lives on", "'b'", "use tether_rref_to_here()"),
    ROW(method_that_the_type_has_not,
        ENOTFOUND,
        "no method named 'locked.open'",
        "'b'",
        "register it there"),
    ROW(method_of_plain_bytes, ENOTFOUND, "no method named", "'b'", "register it there"),
    ROW(use_after_shutdown,
        ESHUTDOWN,
        "given back",
        "this reference",
        "before tether_agent_shutdown()"),
    ROW(owner_that_has_left, EOWNERDIED, "is lost", "'b'", "make it anew elsewhere"),
    ROW(reference_never_released,
        ELEAK,
        "never released",
        "reference_mistakes.c:",
        "tether_rref_release()"),
    {0},
};
