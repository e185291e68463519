/* Log files of workers. */
#include "tools/run/output/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tether_status refused(const char *path, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EIO, "--log-dir: cannot write '%.160s': %s", path,
                            strerror(errno));
}

/* Makes a directory and its parents, like mkdir -p. */
static tether_status make_dir(char *path, tether_error *reterr)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int rc = mkdir(path, 0777);
        *slash = '/';
        if (rc != 0 && errno != EEXIST)
            return refused(path, reterr);
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return refused(path, reterr);
    return access(path, W_OK | X_OK) == 0 ? TETHER_OK : refused(path, reterr);
}

static tether_status fit(char *path, int len, tether_error *reterr)
{
    if (len < PATH_MAX)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EINVAL, "--log-dir: the path '%.80s...' is too long",
                            path);
}

tether_status run_logs_init(const char *dir, tether_error *reterr)
{
    if (!dir)
        return TETHER_OK;
    char path[PATH_MAX];
    struct stat st;
    if (lstat(dir, &st) == 0 && S_ISLNK(st.st_mode) && st.st_uid != geteuid() && st.st_uid != 0)
        return tether_error_set(reterr, TETHER_EPERM,
                                "--log-dir: '%.160s' is a symbolic link of another user: give the "
                                "directory itself",
                                dir);
    tether_status status = fit(path, snprintf(path, sizeof path, "%s", dir), reterr);
    return status == TETHER_OK ? make_dir(path, reterr) : status;
}

/* Opens DIR/round_N. Does not follow links below DIR: where other users may write, a link could
 * lead to any file. */
static tether_status open_round(const char *dir, uint64_t round, int *ret_fd, tether_error *reterr)
{
    char name[32], path[PATH_MAX];
    snprintf(name, sizeof name, "round_%llu", (unsigned long long)round);
    tether_status st = fit(path, snprintf(path, sizeof path, "%s/%s", dir, name), reterr);
    if (st == TETHER_OK)
        st = run_logs_init(dir, reterr);
    if (st != TETHER_OK)
        return st;
    int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return refused(dir, reterr);
    if (mkdirat(dir_fd, name, 0777) == 0 || errno == EEXIST)
        *ret_fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    else
        *ret_fd = -1;
    st = *ret_fd >= 0 ? TETHER_OK : refused(path, reterr);
    close(dir_fd);
    return st;
}

/* Opens rank_R.out or .err in the directory of the round. Truncates it if it belongs to this
 * user. */
static tether_status open_log(int round_fd,
                              int rank,
                              const char *suffix,
                              int *ret_fd,
                              tether_error *reterr)
{
    char name[32];
    struct stat st;
    snprintf(name, sizeof name, "rank_%d.%s", rank, suffix);
    int fd = openat(round_fd, name,
                    O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    if (fd < 0)
        return refused(name, reterr);
    tether_status status = TETHER_OK;
    bool known = fstat(fd, &st) == 0;
    if (known && (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1))
        status =
            tether_error_set(reterr, TETHER_EPERM,
                             "--log-dir: '%s' exists and is not a regular file of this user with "
                             "one hard link: remove it, or give another directory",
                             name);
    else if (!known || ftruncate(fd, 0) != 0)
        status = refused(name, reterr);
    if (status == TETHER_OK)
        *ret_fd = fd;
    else
        close(fd);
    return status;
}

tether_status run_logs_open(const char *dir,
                            uint64_t round,
                            int rank,
                            int *ret_out_fd,
                            int *ret_err_fd,
                            tether_error *reterr)
{
    *ret_out_fd = *ret_err_fd = -1;
    if (!dir)
        return TETHER_OK;
    int round_fd = -1;
    tether_status st = open_round(dir, round, &round_fd, reterr);
    if (st != TETHER_OK)
        return st;
    st = open_log(round_fd, rank, "out", ret_out_fd, reterr);
    if (st == TETHER_OK)
        st = open_log(round_fd, rank, "err", ret_err_fd, reterr);
    close(round_fd);
    if (st != TETHER_OK) {
        run_logs_close(*ret_out_fd, *ret_err_fd);
        *ret_out_fd = *ret_err_fd = -1;
    }
    return st;
}

void run_logs_close(int out_fd, int err_fd)
{
    if (out_fd >= 0)
        close(out_fd);
    if (err_fd >= 0)
        close(err_fd);
}
