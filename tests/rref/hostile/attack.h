/* A test of which one process is a worker and its group, and another one a hostile member that
 * attacks the worker (member.h). */
#ifndef TETHER_TESTS_RREF_HOSTILE_ATTACK_H
#define TETHER_TESTS_RREF_HOSTILE_ATTACK_H

#include <stdatomic.h>
#include <stdint.h>

#include "tests/rref/hostile/member.h"

enum { ATTACK_WORKER, ATTACK_MEMBER, ATTACK_N_RANKS };

struct attack {
    void (*run)(const struct member_notice *notice);
    void (*check)(struct member_group *group); /* while the member is still there; or NULL */
};

/* Plays one of the two: the worker runs `check`, the member `run`. */
void attack_run(struct tether_test_rank *self, int rank, const struct attack *attack);

/* Defines the cmocka test `name`; the other arguments are fields of struct attack. */
#define ATTACK(name, ...)                                            \
    TETHER_PROC_TEST(name, .ranks = ATTACK_N_RANKS)                  \
    {                                                                \
        attack_run(self, rank, &(const struct attack){__VA_ARGS__}); \
    }

/* In the worker, since the member was let in. */
long attack_grown_kb(void); /* by how much the most memory that it has had grew */
int attack_new_descriptors(void);
extern int64_t attack_started_at;           /* by the system clock, before the group started */
extern atomic_int attack_n_closings_logged; /* lines in the log about closed streams */

#endif
