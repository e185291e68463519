/* Memory for secrets. See secret.h. */
#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A secret has pages of its own, because only whole pages can be left out of core dumps. */
struct vault {
    size_t size; /* size of the whole mapping */
    char text[];
};

static struct vault *vault_new(size_t len)
{
    if (len > SIZE_MAX / 2)
        return NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = (sizeof(struct vault) + len + 1 + page - 1) / page * page;
    struct vault *vault =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (vault == MAP_FAILED)
        return NULL;
    madvise(vault, size, MADV_DONTDUMP);
    /* the call may fail above a limit; the memory may then be swapped like any other */
    mlock2(vault, size, MLOCK_ONFAULT);
    vault->size = size;
    return vault; /* new pages are zero, so there is a NUL after the text */
}

char *tether__secret_new(tether_bytes text)
{
    struct vault *vault = vault_new(text.len);
    if (!vault)
        return NULL;
    if (text.len)
        memcpy(vault->text, text.data, text.len);
    return vault->text;
}

/* Reads up to `len` bytes; false: errno says why not. */
static bool read_all(int fd, char *to, size_t len, size_t *ret_len)
{
    *ret_len = 0;
    while (*ret_len < len) {
        ssize_t n = read(fd, to + *ret_len, len - *ret_len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        if (n == 0)
            break;
        *ret_len += (size_t)n;
    }
    return true;
}

/* Reads a file from `fd`, which it TAKES, also on error. */
static char *read_open_file(int fd, size_t max)
{
    /* room for the limit is cheap: pages that stay untouched use no memory */
    struct vault *vault = vault_new(max + 1);
    int error = ENOMEM;
    size_t len;
    if (vault) {
        error = !read_all(fd, vault->text, max + 1, &len) ? errno : len > max ? EFBIG : 0;
        vault->text[max] = '\0';
    }
    close(fd);
    if (!error)
        return vault->text;
    if (vault)
        tether__secret_free(vault->text);
    errno = error;
    return NULL;
}

char *tether__secret_read(const char *path, size_t max)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    return fd < 0 ? NULL : read_open_file(fd, max);
}

char *tether__secret_read_private(const char *path, size_t max)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return NULL;
    int error = fstat(fd, &st) != 0 ? errno : 0;
    if (!error && (st.st_uid != geteuid() || (st.st_mode & (S_IRWXG | S_IRWXO))))
        error = EPERM;
    if (!error)
        return read_open_file(fd, max);
    close(fd);
    errno = error;
    return NULL;
}

void *tether__secret_free(const char *secret)
{
    if (!secret)
        return NULL;
    struct vault *vault = tether__container_of(secret, struct vault, text);
    size_t size = vault->size;
    explicit_bzero(vault, size);
    munmap(vault, size);
    return NULL;
}
