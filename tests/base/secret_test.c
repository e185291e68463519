/* Secrets: their pages are left out of core dumps, and freeing wipes them. */
#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"

/* Whether the pages around `address` are left out of core dumps ("dd" among their flags). */
static bool is_left_out_of_dumps(const void *address)
{
    FILE *maps = fopen("/proc/self/smaps", "re");
    char line[512];
    bool inside = false, left_out = false;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = (uintptr_t)address >= from && (uintptr_t)address < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            left_out = strstr(line, " dd") != NULL;
    }
    fclose(maps);
    return left_out;
}

static void secrets_are_left_out_of_core_dumps(void **state)
{
    (void)state;
    char *secret = tether__secret_new(tether_bytes_str("sesame"));
    assert_string_equal(secret, "sesame");
    assert_true(is_left_out_of_dumps(secret));
    char *heap = strdup("sesame");
    assert_false(is_left_out_of_dumps(heap)); /* shows that the check can fail */
    free(heap);
    assert_null(tether__secret_free(secret));
    assert_null(tether__secret_free(NULL));
    char *empty = tether__secret_new(tether_bytes_of(NULL, 0));
    assert_string_equal(empty, "");
    tether__secret_free(empty);
}

/* The old bytes are not readable: the pages are unmapped, or in new use and zeroed. */
static void freed_secrets_are_wiped(void **state)
{
    (void)state;
    char text[] = "a secret that is nowhere else", there[sizeof text] = "";
    char *secret = tether__secret_new(tether_bytes_str(text));
    off_t at = (off_t)(uintptr_t)secret;
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    assert_true(memory >= 0);
    assert_int_equal(pread(memory, there, sizeof there, at), sizeof there);
    assert_string_equal(there, text);
    explicit_bzero(there, sizeof there);
    tether__secret_free(secret);
    if (pread(memory, there, sizeof there, at) > 0)
        assert_memory_not_equal(there, text, sizeof text);
    close(memory);
}

static void long_secrets_are_complete(void **state)
{
    (void)state;
    size_t len = 100000;
    char *text = malloc(len);
    memset(text, 'k', len);
    char *secret = tether__secret_new(tether_bytes_of(text, len));
    assert_int_equal(strlen(secret), len);
    assert_true(is_left_out_of_dumps(secret + len - 1));
    tether__secret_free(secret);
    free(text);
}

static void files_are_read_up_to_a_limit(void **state)
{
    (void)state;
    char path[] = "/tmp/tether-secret-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "0123456789", 10), 10);
    char *secret = tether__secret_read(path, 10);
    assert_string_equal(secret, "0123456789");
    assert_true(is_left_out_of_dumps(secret));
    tether__secret_free(secret);
    assert_null(tether__secret_read(path, 9));
    assert_int_equal(errno, EFBIG);
    assert_int_equal(ftruncate(fd, 0), 0);
    secret = tether__secret_read(path, 9);
    assert_string_equal(secret, "");
    tether__secret_free(secret);
    close(fd);
    unlink(path);
    assert_null(tether__secret_read(path, 9));
    assert_int_equal(errno, ENOENT);
    assert_null(tether__secret_read("/", 9));
    assert_int_equal(errno, EISDIR);
}

struct swapper {
    char name[64], mine[64], theirs[64];
    _Atomic bool stop;
};

/* Writes `text` to `path`, by way of another file, so that it is there whole or not at all. */
static void put_in_place(const char *at, const char *path, const char *text, mode_t mode)
{
    int fd = open(at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    assert_int_equal(rename(at, path), 0);
}

static void *swap(void *arg)
{
    struct swapper *swapper = arg;
    while (!atomic_load(&swapper->stop)) {
        put_in_place(swapper->theirs, swapper->name, "theirs", 0644);
        put_in_place(swapper->mine, swapper->name, "mine", 0600);
    }
    return NULL;
}

static void private_file_is_read_alone_when_path_is_swapped(void **state)
{
    (void)state;
    char folder[] = "/tmp/tether-swap-XXXXXX";
    struct swapper swapper = {.stop = false};
    pthread_t thread;
    int n_read = 0, n_refused = 0;
    assert_non_null(mkdtemp(folder));
    snprintf(swapper.name, sizeof swapper.name, "%s/token", folder);
    snprintf(swapper.mine, sizeof swapper.mine, "%s/mine", folder);
    snprintf(swapper.theirs, sizeof swapper.theirs, "%s/theirs", folder);
    put_in_place(swapper.mine, swapper.name, "mine", 0600);
    assert_int_equal(pthread_create(&thread, NULL, swap, &swapper), 0);
    while (n_read < 2000 || n_refused < 2000) {
        char *secret = tether__secret_read_private(swapper.name, 10);
        if (secret)
            assert_string_equal(secret, "mine");
        else
            assert_int_equal(errno, EPERM);
        n_read += secret != NULL;
        n_refused += secret == NULL;
        tether__secret_free(secret);
    }
    atomic_store(&swapper.stop, true);
    pthread_join(thread, NULL);
    unlink(swapper.name);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(secrets_are_left_out_of_core_dumps),
        cmocka_unit_test(freed_secrets_are_wiped),
        cmocka_unit_test(long_secrets_are_complete),
        cmocka_unit_test(files_are_read_up_to_a_limit),
        cmocka_unit_test(private_file_is_read_alone_when_path_is_swapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
