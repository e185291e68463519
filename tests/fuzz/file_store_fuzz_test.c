/* The file store on any file: it never crashes or hangs, never touches a file that is not a
 * store's, and what it opens it can use.
 *
 * The first byte of an input says what the rest is: a whole file, the records, or
 * the body of a record whose frame is right, which no fuzzer would find by itself.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/store.h"
#include "rendezvous/store/file/log.h"
#include "tests/fuzz/fuzz.h"

#define MOST 65536

static void fill(int fd, const char *path, int mode, const uint8_t *data, size_t size)
{
    if (mode == 0) {
        fuzz_check(write(fd, data, size) == (ssize_t)size);
        return;
    }
    static char record[TETHER__FILE_LOG_HEADER + MOST];
    struct tether__file_log log;
    fuzz_check(tether__file_log_open(&log, path, NULL) == TETHER_OK);
    fuzz_check(tether__file_log_check(&log, NULL) == TETHER_OK);
    if (mode == 1) {
        fuzz_check(pwrite(fd, data, size, TETHER__FILE_LOG_START) == (ssize_t)size);
    } else {
        memcpy(record + TETHER__FILE_LOG_HEADER, data, size);
        fuzz_check(tether__file_log_write(&log, record, TETHER__FILE_LOG_HEADER + size, NULL) ==
                   TETHER_OK);
    }
    tether__file_log_close(&log);
}

static void use(tether_store *store)
{
    tether_buf value = TETHER_BUF_INIT;
    tether_store_keys keys = {NULL, 0};
    fuzz_check(tether_store_set(store, "key", tether_bytes_str("value"), 0, NULL) == TETHER_OK);
    fuzz_check(tether_store_get(store, "key", 0, &value, NULL) == TETHER_OK);
    fuzz_check(value.len == 5 && memcmp(value.data, "value", 5) == 0);
    fuzz_check(tether_store_list_keys(store, 0, &keys, NULL) == TETHER_OK);
    fuzz_check(keys.count >= 1);
    tether_store_keys_fini(&keys);
    tether_buf_fini(&value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > MOST)
        return 0;
    int mode = data[0] % 3;
    char path[256];
    const char *dir = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/file_store_fuzz.%d", dir ? dir : "/tmp", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_check(fd >= 0);
    fill(fd, path, mode, data + 1, size - 1);

    struct stat before, after;
    fuzz_check(fstat(fd, &before) == 0);
    tether_store *store = NULL;
    tether_error err = {0};
    tether_status st = tether_store_file_new(path, -1, &store, &err);
    fuzz_check(fstat(fd, &after) == 0);
    if (st == TETHER_OK) {
        use(store);
    } else { /* says why, and has left it as it is */
        fuzz_check(st == TETHER_ECORRUPT && err.code == st && err.message[0]);
        fuzz_check(before.st_size == after.st_size);
    }
    tether_store_release(store);
    close(fd);
    unlink(path);
    return 0;
}
