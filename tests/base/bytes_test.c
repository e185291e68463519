/* Views and buffers: content, growth, and failed allocations, which change nothing. */
#include "base/bytes.h"

#include <stdio.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"

static void assert_holds(const tether_buf *buf, const char *text)
{
    assert_int_equal(buf->len, strlen(text));
    assert_string_equal(buf->data, text); /* there is a NUL after the last byte */
    assert_true(tether_bytes_equal(tether_buf_bytes(buf), tether_bytes_str(text)));
}

static void views_compare_by_content(void **state)
{
    (void)state;
    assert_true(tether_bytes_equal(tether_bytes_str("abc"), tether_bytes_of("abcd", 3)));
    assert_false(tether_bytes_equal(tether_bytes_str("abc"), tether_bytes_str("abd")));
    assert_false(tether_bytes_equal(tether_bytes_str("abc"), tether_bytes_str("ab")));
    assert_true(tether_bytes_equal(tether_bytes_of(NULL, 0), tether_bytes_str("")));
    assert_true(tether_bytes_equal(tether_bytes_of("a\0b", 3), tether_bytes_of("a\0b", 3)));
    assert_false(tether_bytes_equal(tether_bytes_of("a\0b", 3), tether_bytes_of("a\0c", 3)));
}

static void append_adds_to_buffer(void **state)
{
    (void)state;
    tether_buf buf = TETHER_BUF_INIT;
    assert_int_equal(tether_buf_append(&buf, tether_bytes_str("one")), TETHER_OK);
    assert_int_equal(tether_buf_printf(&buf, " %d %s", 2, "three"), TETHER_OK);
    assert_holds(&buf, "one 2 three");
    assert_int_equal(tether_buf_append(&buf, tether_bytes_of(NULL, 0)), TETHER_OK);
    assert_holds(&buf, "one 2 three");
    assert_int_equal(tether_buf_assign(&buf, tether_bytes_str("new")), TETHER_OK);
    assert_holds(&buf, "new");
    assert_int_equal(tether_buf_assign(&buf, tether_bytes_of(NULL, 0)), TETHER_OK);
    assert_holds(&buf, "");
    tether_buf_fini(&buf);
    assert_null(buf.data);
    assert_int_equal(tether_buf_append(&buf, tether_bytes_str("again")), TETHER_OK);
    assert_holds(&buf, "again");
    tether_buf_fini(&buf);
    tether_buf_fini(&buf);
    tether_buf_fini(NULL);
}

static void empty_value_ends_with_nul(void **state)
{
    (void)state;
    tether_buf buf = TETHER_BUF_INIT;
    assert_int_equal(tether_buf_append(&buf, tether_bytes_of(NULL, 0)), TETHER_OK);
    assert_holds(&buf, "");
    tether_buf_fini(&buf);
}

/* The number of allocations grows with the logarithm of the appended bytes. */
static void buffer_doubles_when_it_grows(void **state)
{
    (void)state;
    tether_buf buf = TETHER_BUF_INIT;
    size_t moves = 0, cap = 0;
    for (size_t i = 0; i < 100000; i++) {
        assert_int_equal(tether_buf_append(&buf, tether_bytes_of("x", 1)), TETHER_OK);
        moves += buf.cap != cap;
        cap = buf.cap;
    }
    assert_int_equal(buf.len, 100000);
    assert_in_range(moves, 1, 20);
    tether_buf_fini(&buf);
}

static void reserve_makes_room_without_adding(void **state)
{
    (void)state;
    tether_buf buf = TETHER_BUF_INIT;
    assert_int_equal(tether_buf_reserve(&buf, 1000), TETHER_OK);
    assert_holds(&buf, "");
    const char *where = buf.data;
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(tether_buf_append(&buf, tether_bytes_of("x", 1)), TETHER_OK);
    assert_ptr_equal(buf.data, where);
    tether_buf_fini(&buf);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    tether_buf buf = TETHER_BUF_INIT;
    assert_int_equal(tether_buf_append(&buf, tether_bytes_str("x")), TETHER_OK);
    assert_int_equal(tether_buf_reserve(&buf, SIZE_MAX), TETHER_ENOMEM);
    assert_int_equal(tether_buf_reserve(&buf, SIZE_MAX - 1), TETHER_ENOMEM);
    assert_holds(&buf, "x");
    tether_buf_fini(&buf);
}

static tether_status fill(tether_buf *buf)
{
    tether_status st = tether_buf_append(buf, tether_bytes_str("first"));
    for (int i = 0; st == TETHER_OK && i < 20; i++) {
        size_t len_before = buf->len;
        st = tether_buf_printf(buf, "[%d: some more text]", i);
        if (st != TETHER_OK)
            assert_int_equal(buf->len, len_before);
    }
    if (st == TETHER_OK)
        st = tether_buf_assign(buf, tether_bytes_of(memset((char[5000]){0}, 'y', 5000), 5000));
    if (st != TETHER_OK && buf->len > 0)
        /* The old content is still there after any failure. */
        assert_memory_equal(buf->data, "first", 5);
    return st;
}

static tether_status fill_and_drop(void *userdata)
{
    (void)userdata;
    tether_buf buf = TETHER_BUF_INIT;
    tether_status st = fill(&buf);
    tether_buf_fini(&buf);
    return st;
}

static void buffer_is_unchanged_when_allocation_fails(void **state)
{
    (void)state;
    tether_test_heap_fail_each(fill_and_drop, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_compare_by_content),
        cmocka_unit_test(append_adds_to_buffer),
        cmocka_unit_test(empty_value_ends_with_nul),
        cmocka_unit_test(buffer_doubles_when_it_grows),
        cmocka_unit_test(reserve_makes_room_without_adding),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(buffer_is_unchanged_when_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
