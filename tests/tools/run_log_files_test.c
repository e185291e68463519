/* tether-run writes log files into no file and no directory that another user may have put there.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/user.h"
#include "tests/tools/launch.h"

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void expect_file(const char *path, const char *text)
{
    char there[64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(read(fd, there, sizeof there - 1) >= 0);
    close(fd);
    assert_string_equal(there, text);
}

static void expect_refusal(const char *option, const char *text)
{
    struct tether_test_child *run = launch(option, "--", "echo", "output");
    char *output = await_exit(run, 6);
    has(output, "--log-dir: ");
    has(output, text);
    free(output);
    tether_test_child_free(run);
}

/* tether-run must not follow links below the directory, which another user may have made. */
static void log_files_do_not_follow_links(void **state)
{
    (void)state;
    char dir[] = "/tmp/tether-logs-XXXXXX", option[64], victim[64], round[64], log[80];
    assert_non_null(mkdtemp(dir));
    snprintf(option, sizeof option, "--log-dir=%s", dir);
    snprintf(victim, sizeof victim, "%s/victim", dir);
    snprintf(round, sizeof round, "%s/round_0", dir);
    snprintf(log, sizeof log, "%s/rank_0.out", round);
    put(victim, "precious");

    assert_int_equal(mkdir(round, 0700), 0);
    assert_int_equal(symlink(victim, log), 0);
    expect_refusal(option, "rank_0.out");
    expect_file(victim, "precious");
    unlink(log);
    assert_int_equal(link(victim, log), 0);
    expect_refusal(option, "one hard link");
    expect_file(victim, "precious");
    unlink(log);
    assert_int_equal(mkfifo(log, 0600), 0);
    expect_refusal(option, "rank_0.out");
    unlink(log);

    char elsewhere[64], clean_up[80];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", dir);
    assert_int_equal(mkdir(elsewhere, 0700), 0);
    snprintf(clean_up, sizeof clean_up, "rm -r %s", round);
    assert_int_equal(system(clean_up), 0);
    assert_int_equal(symlink(elsewhere, round), 0);
    expect_refusal(option, "round_0");
    assert_int_equal(rmdir(elsewhere), 0); /* it is empty */

    unlink(round); /* without links it works, also when an older log file of this user exists */
    for (int times = 0; times < 2; times++) {
        struct tether_test_child *run = launch(option, "--", "echo", "output");
        free(await_exit(run, 0));
        tether_test_child_free(run);
        expect_file(log, "output\n");
    }
    snprintf(clean_up, sizeof clean_up, "rm -r %s", dir);
    assert_int_equal(system(clean_up), 0);
}

static void log_file_of_another_user_is_refused(void **state)
{
    (void)state;
    char dir[] = "/tmp/tether-logs-XXXXXX", option[64], round[64], log[80];
    assert_non_null(mkdtemp(dir));
    snprintf(option, sizeof option, "--log-dir=%s", dir);
    snprintf(round, sizeof round, "%s/round_0", dir);
    snprintf(log, sizeof log, "%s/rank_0.out", round);
    assert_int_equal(mkdir(round, 0700), 0);
    put(log, "of another user");
    bool can_give_away = chown(log, TETHER_TEST_OTHER_USER, (gid_t)-1) == 0;
    if (can_give_away) {
        expect_refusal(option, "of this user");
        expect_file(log, "of another user");
    }
    unlink(log);
    rmdir(round);
    assert_int_equal(rmdir(dir), 0);
    if (!can_give_away)
        skip(); /* only root can make a file of another user */
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_files_do_not_follow_links),
        cmocka_unit_test(log_file_of_another_user_is_refused),
    };
    return cmocka_run_group_tests_name("run_log_files", tests, NULL, NULL);
}
