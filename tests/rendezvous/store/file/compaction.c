#include "tests/rendezvous/store/file/compaction.h"

#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include "tests/rendezvous/store/suite_internal.h"

char big[BIG_LEN + 1]; /* a value that fills a log quickly */

tether_store *compact_open(const char *path)
{
    tether_store *store = NULL;
    assert_ok(tether_store_file_new(path, -1, &store, err));
    return store;
}

uint64_t compact_generation_of(const char *path)
{
    uint64_t generation = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, &generation, sizeof generation, 24), sizeof generation);
    close(fd);
    return le64toh(generation);
}

void fill_big(void)
{
    memset(big, 'x', BIG_LEN);
}

void compact(tether_store *store, const char *path, int times)
{
    fill_big();
    for (; times > 0; times--) {
        uint64_t before = compact_generation_of(path);
        while (compact_generation_of(path) == before)
            SET("big", big);
    }
}
