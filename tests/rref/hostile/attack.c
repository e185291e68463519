/* See attack.h. */
#include "tests/rref/hostile/attack.h"

#include <dirent.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/log.h"
#include "tests/lib/cmocka.h"

enum { SERVING, ATTACKED, CHECKED };

/* The most memory that this process has had, in KiB. */
static long peak_kb(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
}

static int n_descriptors(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n - 3; /* ".", ".." and the folder itself */
}

static long kb_before;
static int descriptors_before;
int64_t attack_started_at;
atomic_int attack_n_closings_logged;

static void count_closings(void *userdata,
                           tether_log_level level,
                           const char *area,
                           const char *message)
{
    (void)userdata, (void)level, (void)area;
    if (strstr(message, "closing the stream"))
        atomic_fetch_add(&attack_n_closings_logged, 1);
}

void attack_run(struct tether_test_rank *self, int rank, const struct attack *attack)
{
    struct member_notice *notice = member_notice(self->world);
    if (rank == ATTACK_WORKER) {
        struct member_group group;
        attack_started_at = tether__clock_now_ns(&tether__clock_system);
        tether_set_log(TETHER_LOG_WARN, count_closings, NULL);
        member_group_start(&group, notice);
        kb_before = peak_kb();
        descriptors_before = n_descriptors();
        tether_test_mark(self->world, SERVING);
        tether_test_await_mark(self->world, ATTACKED, 1);
        if (attack->check)
            attack->check(&group);
        tether_test_mark(self->world, CHECKED);
        member_group_end(&group);
        tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    } else {
        tether_test_await_mark(self->world, SERVING, 1);
        attack->run(notice);
        tether_test_mark(self->world, ATTACKED);
        tether_test_await_mark(self->world, CHECKED, 1); /* its sockets are open until then */
    }
}

long attack_grown_kb(void)
{
    return peak_kb() - kb_before;
}

int attack_new_descriptors(void)
{
    return n_descriptors() - descriptors_before;
}
