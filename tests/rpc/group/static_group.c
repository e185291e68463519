#include "tests/rpc/group/static_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/rpc/lib/crew.h"

void group_file_place(char *ret_place, size_t size)
{
    static int n;
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(ret_place, size, "file://%s/group-%d-%d", folder ? folder : "/tmp", getpid(), n++);
}

const char *group_url(const struct tether_test_rank *self, char *url, size_t size)
{
    char number[16];
    if (strncmp(self->arg, "env://", 6) != 0) {
        snprintf(url, size, "%s?rank=%d&world_size=%d", self->arg, self->rank, self->size);
        return url;
    }
    snprintf(number, sizeof number, "%d", self->rank);
    setenv("RANK", number, 1);
    snprintf(number, sizeof number, "%d", self->size);
    setenv("WORLD_SIZE", number, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", self->arg + 6, 1);
    return "env://";
}
