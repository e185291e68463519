/* See contestant.h. */
#include "bench/lib/contestant.h"

#include <stdio.h>
#include <string.h>

static const struct bench_skill *find(const struct bench_skill *skills, const char *figure)
{
    for (; skills->figure; skills++)
        if (strcmp(skills->figure, figure) == 0)
            return skills;
    return NULL;
}

void bench_answer(const struct bench_skill *skills, void *self)
{
    char line[128], figure[64];
    double seconds;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        const struct bench_skill *skill = NULL;
        if (sscanf(line, "%63s %lf", figure, &seconds) == 2)
            skill = find(skills, figure);
        double value = skill ? skill->measure(self, seconds) : -1;
        if (value >= 0)
            printf("%.9g\n", value);
        else
            puts("-");
        fflush(stdout);
    }
}
