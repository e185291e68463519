/* Log files of workers. */
#include "tools/run/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tether_status refused(const char *path, tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EIO, "--log-dir: cannot write '%.160s': %s", path,
                            strerror(errno));
}

/* mkdir -p */
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
    tether_status st = fit(path, snprintf(path, sizeof path, "%s", dir), reterr);
    return st == TETHER_OK ? make_dir(path, reterr) : st;
}

static tether_status open_log(const char *dir,
                              uint64_t round,
                              int rank,
                              const char *suffix,
                              int *ret_fd,
                              tether_error *reterr)
{
    char path[PATH_MAX];
    int len = snprintf(path, sizeof path, "%s/round_%llu/rank_%d.%s", dir,
                       (unsigned long long)round, rank, suffix);
    tether_status st = fit(path, len, reterr);
    if (st != TETHER_OK)
        return st;
    *ret_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *ret_fd >= 0 ? TETHER_OK : refused(path, reterr);
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
    char path[PATH_MAX];
    int len = snprintf(path, sizeof path, "%s/round_%llu", dir, (unsigned long long)round);
    tether_status st = fit(path, len, reterr);
    if (st == TETHER_OK)
        st = make_dir(path, reterr);
    if (st == TETHER_OK)
        st = open_log(dir, round, rank, "out", ret_out_fd, reterr);
    if (st == TETHER_OK)
        st = open_log(dir, round, rank, "err", ret_err_fd, reterr);
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
