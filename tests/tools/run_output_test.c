/* The path of lines from a worker's pipe to the reader: whole, prefixed, in order, and without
 * blocking the launcher. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tools/run/output/console.h"
#include "tools/run/output/stream.h"

/* A stream that reads from a pipe, and a sink that writes to another. */
struct plumbing {
    uv_loop_t loop;
    struct run_sink sink;
    struct run_stream stream;
    struct run_tail tail;
    int into, out_of;
    bool ended;
};

static void on_ended(struct run_stream *stream)
{
    struct plumbing *p = tether__container_of(stream, struct plumbing, stream);
    p->ended = true;
}

static void on_drained(void *userdata)
{
    struct plumbing *p = userdata;
    run_stream_resume(&p->stream);
}

static int setup(void **state)
{
    struct plumbing *p = calloc(1, sizeof *p);
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(fcntl(out[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(fcntl(in[1], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(uv_loop_init(&p->loop), 0);
    assert_int_equal(run_sink_init(&p->sink, &p->loop, out[1], on_drained, p, NULL), TETHER_OK);
    assert_true(p->sink.own_fd);
    close(out[1]); /* the sink has opened the pipe again */
    p->into = in[1];
    p->out_of = out[0];
    p->stream.sink = &p->sink;
    p->stream.tail = &p->tail;
    p->stream.ended = on_ended;
    strcpy(p->stream.prefix, "[7] ");
    assert_int_equal(run_stream_open(&p->stream, &p->loop, in[0], -1, NULL), TETHER_OK);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct plumbing *p = *state;
    run_stream_end(&p->stream);
    run_sink_close(&p->sink);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    assert_true(p->ended);
    assert_int_equal(uv_loop_close(&p->loop), 0);
    close(p->into);
    close(p->out_of);
    free(p);
    return 0;
}

static void write_text(struct plumbing *p, const char *text)
{
    assert_int_equal(write(p->into, text, strlen(text)), strlen(text));
    while (uv_run(&p->loop, UV_RUN_NOWAIT) && uv_backend_timeout(&p->loop) == 0)
        ;
}

/* Returns the output since the last call. */
static const char *new_output(struct plumbing *p)
{
    static char text[256 * 1024];
    ssize_t n = read(p->out_of, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void lines_are_written_whole(void **state)
{
    struct plumbing *p = *state;
    write_text(p, "one\ntw");
    assert_string_equal(new_output(p), "[7] one\n");
    write_text(p, "o");
    assert_string_equal(new_output(p), "");
    write_text(p, "!\n\nthree");
    assert_string_equal(new_output(p), "[7] two!\n[7] \n");
    run_stream_end(&p->stream);
    assert_string_equal(new_output(p), "[7] three\n"); /* the stream ends the line at its end */
}

/* A progress bar that overwrites itself: each state is written when the next one begins, or after a
 * while. */
static void piece_is_written_at_once_when_a_carriage_return_ends_it(void **state)
{
    struct plumbing *p = *state;
    write_text(p, "10%\r20%");
    assert_string_equal(new_output(p), "[7] 10%");
    run_stream_show(&p->stream);
    assert_string_equal(new_output(p), "\r[7] 20%");
    run_stream_show(&p->stream);
    assert_string_equal(new_output(p), "");
    write_text(p, " of all\r");
    run_stream_show(&p->stream);
    assert_string_equal(new_output(p),
                        " of all"); /* the rest of a piece whose beginning has been written */
    write_text(p, "\r\r30%\r");
    run_stream_show(&p->stream);
    assert_string_equal(new_output(p), "\r[7] 30%");
    write_text(p, "done\nnext\r");
    assert_string_equal(new_output(p), "\r[7] done\n");
    write_text(p, "\n");
    assert_string_equal(new_output(p),
                        "[7] next\r\n"); /* a line that ends in carriage return and newline */
    write_text(p, "a\r\nb\n");
    assert_string_equal(new_output(p), "[7] a\r\n[7] b\n");
    tether_buf text = TETHER_BUF_INIT;
    assert_int_equal(run_tail_lines(&p->tail, 9, &text), TETHER_OK);
    /* Without the pieces that were overwritten. */
    assert_string_equal(text.data, "done\nnext\na\nb\n");
    tether_buf_fini(&text);
    write_text(p, "40%\r");
    run_stream_show(&p->stream);
    assert_string_equal(new_output(p), "[7] 40%");
    run_stream_end(&p->stream);
    assert_string_equal(new_output(p),
                        "\r\n"); /* so that the shell's prompt is on a line of its own */
}

/* A line of another worker, or of the launcher, ends an open line. The rest of the open line is a
 * line of its own. */
static void open_line_ends_when_another_worker_writes(void **state)
{
    struct plumbing *p = *state;
    struct run_console console = {.sink = &p->sink};
    write_text(p, "Loading");
    assert_string_equal(new_output(p), "");
    run_stream_show(&p->stream);
    assert_string_equal(new_output(p), "[7] Loading");
    run_console_say(&console, "hello");
    assert_string_equal(new_output(p), "\ntether-run: hello\n");
    write_text(p, "... done\n");
    assert_string_equal(new_output(p), "[7] ... done\n");
    write_text(p, "5%\r");
    run_stream_show(&p->stream);
    run_console_say(&console, "again");
    write_text(p, "6%\r");
    run_stream_show(&p->stream);
    assert_string_equal(new_output(p), "[7] 5%\ntether-run: again\n[7] 6%");
    run_console_say(&console, "more");
    write_text(p, "7%");
    run_stream_show(&p->stream);
    run_console_say(&console, "end");
    write_text(p, "\nnext\n"); /* the line has been ended already: no empty line follows */
    assert_string_equal(new_output(p), "\ntether-run: more\n[7] 7%\ntether-run: end\n[7] next\n");
}

static void long_lines_are_split(void **state)
{
    struct plumbing *p = *state;
    static char text[RUN_LINE_MAX + 2];
    memset(text, 'x', RUN_LINE_MAX);
    text[RUN_LINE_MAX / 2] = '\0';
    size_t total = 0, lines = 0;
    for (int i = 0; i < 4; i++) {
        write_text(p, text);
        for (const char *c = new_output(p); *c; c++) {
            total += *c == 'x';
            lines += *c == '\n';
        }
    }
    write_text(p, "y\n");
    for (const char *c = new_output(p); *c; c++) {
        total += *c == 'x' || *c == 'y';
        lines += *c == '\n';
    }
    assert_int_equal(total, 4 * (RUN_LINE_MAX / 2) + 1);
    assert_int_equal(lines, 3);
}

static void slow_reader_delays_only_the_worker(void **state)
{
    struct plumbing *p = *state;
    char line[1024];
    memset(line, 'z', sizeof line - 1);
    line[sizeof line - 1] = '\n';
    /* Nothing reads the output: at some point the worker's pipe is full, and the loop has not
     * blocked. */
    size_t sent = 0;
    for (int stuck = 0; stuck < 3;) {
        ssize_t n = write(p->into, line, sizeof line);
        assert_true(n == sizeof line || (n < 0 && errno == EAGAIN));
        sent += n > 0 ? (size_t)n : 0;
        stuck = n > 0 ? 0 : stuck + 1;
        uv_run(&p->loop, UV_RUN_NOWAIT);
    }
    assert_true(run_sink_full(&p->sink));
    assert_true(p->stream.paused);
    assert_true(sent < 1024 * 1024);

    /* Once the test reads, all bytes come, and the stream continues to read. */
    size_t got = 0, lines = sent / sizeof line;
    close(p->into);
    p->into = open("/dev/null", O_WRONLY | O_CLOEXEC);
    while (!p->ended || !run_sink_idle(&p->sink)) {
        for (const char *c = new_output(p); *c; c++)
            got++;
        uv_run(&p->loop, UV_RUN_NOWAIT);
    }
    for (const char *c = new_output(p); *c; c++)
        got++;
    assert_int_equal(got, sent + lines * strlen(p->stream.prefix));
}

static void output_is_dropped_when_reader_has_closed(void **state)
{
    struct plumbing *p = *state;
    close(p->out_of);
    p->out_of = open("/dev/null", O_RDONLY | O_CLOEXEC);
    write_text(p, "anybody?\n");
    write_text(p, "no\n");
    assert_true(p->sink.broken);
    assert_true(run_sink_idle(&p->sink));
}

static void log_file_gets_all_bytes_unchanged(void **state)
{
    (void)state;
    struct plumbing p = {.stream = {.sink = &p.sink, .tail = &p.tail, .ended = on_ended}};
    int in[2], log = memfd_create("log", MFD_CLOEXEC);
    int copy = dup(log);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(uv_loop_init(&p.loop), 0);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(run_sink_init(&p.sink, &p.loop, null, NULL, NULL, NULL), TETHER_OK);
    strcpy(p.stream.prefix, "[0] ");
    assert_int_equal(run_stream_open(&p.stream, &p.loop, in[0], log, NULL), TETHER_OK);
    p.into = in[1];
    write_text(&p, "a\nb");
    char text[16] = "";
    assert_int_equal(pread(copy, text, sizeof text, 0), 3); /* at once, not line by line */
    assert_string_equal(text, "a\nb");
    close(in[1]);
    uv_run(&p.loop, UV_RUN_DEFAULT);
    assert_true(p.ended);
    run_sink_close(&p.sink);
    uv_run(&p.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&p.loop), 0);
    close(copy);
    close(null);
}

static void tail_keeps_the_last_lines(void **state)
{
    (void)state;
    static struct run_tail tail;
    tether_buf text = TETHER_BUF_INIT;
    assert_int_equal(run_tail_lines(&tail, 3, &text), TETHER_OK);
    assert_int_equal(text.len, 0);
    run_tail_add(&tail, tether_bytes_str("a\nb\nc\nd\n"));
    assert_int_equal(run_tail_lines(&tail, 2, &text), TETHER_OK);
    assert_string_equal(text.data, "c\nd\n");
    text.len = 0;
    assert_int_equal(run_tail_lines(&tail, 9, &text), TETHER_OK);
    assert_string_equal(text.data, "a\nb\nc\nd\n");
    text.len = 0;
    assert_int_equal(run_tail_lines(&tail, 0, &text), TETHER_OK);
    assert_int_equal(text.len, 0);

    /* When old bytes have been overwritten, a line without its beginning is not shown. */
    char line[100];
    memset(line, '-', sizeof line);
    line[0] = '<';
    line[sizeof line - 1] = '\n';
    for (size_t n = 0; n < 2 * RUN_TAIL_SIZE; n += sizeof line)
        run_tail_add(&tail, tether_bytes_of(line, sizeof line));
    assert_int_equal(run_tail_lines(&tail, 1000, &text), TETHER_OK);
    assert_int_equal(text.data[0], '<');
    assert_int_equal(text.len, RUN_TAIL_SIZE / sizeof line * sizeof line);
    tether_buf_fini(&text);

    static char huge[RUN_TAIL_SIZE * 2];
    memset(huge, 'h', sizeof huge);
    memcpy(huge + sizeof huge - 6, "\nlast\n", 6);
    run_tail_add(&tail, tether_bytes_of(huge, sizeof huge));
    assert_int_equal(run_tail_lines(&tail, 5, &text), TETHER_OK);
    assert_string_equal(text.data, "last\n");
    tether_buf_fini(&text);
}

static void progress_is_a_line_per_change_without_a_terminal(void **state)
{
    struct plumbing *p = *state;
    struct run_console console = {.sink = &p->sink};
    run_console_progress(&console, "1 of 2 nodes", 26400);
    run_console_progress(&console, "1 of 2 nodes", 25400);
    run_console_progress(&console, "2 of 2 nodes", -1);
    run_console_say(&console, "go %d", 1);
    assert_string_equal(new_output(p),
                        "tether-run: 1 of 2 nodes, 27 s left\ntether-run: 2 of 2 nodes\n"
                        "tether-run: go 1\n");
    p->sink.terminal = true;
    run_console_progress(&console, "1 of 2 nodes", 26400);
    run_console_progress(&console, "1 of 2 nodes", 25000);
    run_console_say(&console, "go");
    assert_string_equal(new_output(p),
                        "\r\033[Ktether-run: 1 of 2 nodes, 27 s left"
                        "\r\033[Ktether-run: 1 of 2 nodes, 25 s left"
                        "\r\033[Ktether-run: go\n");
    console.quiet = true;
    run_console_progress(&console, "x", 1);
    run_console_say(&console, "y");
    run_console_warn(&console, "z");
    assert_string_equal(new_output(p), "tether-run: z\n");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_written_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(piece_is_written_at_once_when_a_carriage_return_ends_it,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(open_line_ends_when_another_worker_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(long_lines_are_split, setup, teardown),
        cmocka_unit_test_setup_teardown(slow_reader_delays_only_the_worker, setup, teardown),
        cmocka_unit_test_setup_teardown(output_is_dropped_when_reader_has_closed, setup, teardown),
        cmocka_unit_test(log_file_gets_all_bytes_unchanged),
        cmocka_unit_test(tail_keeps_the_last_lines),
        cmocka_unit_test_setup_teardown(progress_is_a_line_per_change_without_a_terminal, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
