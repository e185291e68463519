#include "tests/rendezvous/store/file/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/rendezvous/store/suite_internal.h"

void file_new_path(char path[PATH_SIZE])
{
    static int count;
    const char *dir = getenv("TEST_TMPDIR");
    snprintf(path, PATH_SIZE, "%s/store-%d-%d", dir ? dir : "/tmp", (int)getpid(), count++);
}

tether_store *file_open(const char *path, int world_size)
{
    tether_store *store = NULL;
    assert_ok(tether_store_file_new(path, world_size, &store, err));
    return store;
}

tether_store *file_make(void)
{
    char path[PATH_SIZE];
    file_new_path(path);
    return file_open(path, 1);
}

tether_store *file_join(tether_store *store)
{
    return file_open(tether_store_file_path(store), 1);
}

const char *file_name_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

off_t file_size(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

void file_put(const char *path, int flags, const void *data, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | flags, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), len);
    close(fd);
}
