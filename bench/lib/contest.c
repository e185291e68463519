/* See contest.h. */
#include "bench/lib/contest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/load.h"
#include "bench/lib/measure.h"
#include "bench/lib/results.h"

/* One answer may need the start of a Java VM or a million references. */
#define ANSWER_TIMEOUT_S 90
#define MISSING (-1.0)

struct entrant {
    const struct bench_contestant *who;
    pid_t pid; /* 0: not there */
    int in, out;
};

struct course {
    const struct bench_contest *contest;
    const struct bench_options *options;
    const char *placement;
    size_t step, n_steps; /* turns that are done, and all turns */
    struct entrant entrants[BENCH_MAX_CONTESTANTS];
    double values[BENCH_MAX_FIGURES][BENCH_MAX_CONTESTANTS][BENCH_MAX_ROUNDS];
};

/* ---- Questions to a contestant ---- */

/* Reads a line without its newline; false when none came in time. */
static bool read_line(struct entrant *entrant, char *line, size_t size)
{
    double until = bench_now_s() + ANSWER_TIMEOUT_S;
    for (size_t at = 0; at + 1 < size;) {
        struct pollfd readable = {.fd = entrant->out, .events = POLLIN};
        int left_ms = (int)((until - bench_now_s()) * 1000);
        if (left_ms <= 0 || poll(&readable, 1, left_ms) <= 0 ||
            read(entrant->out, line + at, 1) != 1)
            return false;
        if (line[at] == '\n') {
            line[at] = '\0';
            return true;
        }
        at++;
    }
    return false;
}

static void dismiss(struct entrant *entrant)
{
    if (entrant->pid == 0)
        return;
    close(entrant->in); /* end of input: the contestant and its servers exit */
    close(entrant->out);
    bench_await_end(entrant->pid, 5);
    entrant->pid = 0;
}

static void lose(struct entrant *entrant, const char *why)
{
    bench_note("left out: %s, which %s", entrant->who->name, why);
    dismiss(entrant);
}

static double ask(struct entrant *entrant, const char *question, double seconds)
{
    char line[128];
    if (entrant->pid == 0)
        return MISSING;
    int len = snprintf(line, sizeof line, "%s %g\n", question, seconds);
    if (write(entrant->in, line, (size_t)len) != len || !read_line(entrant, line, sizeof line)) {
        lose(entrant, "did not answer");
        return MISSING;
    }
    return strcmp(line, "-") == 0 ? MISSING : atof(line);
}

/* ---- Starting ---- */

static bool is_there(const struct bench_contestant *who, const char *peers)
{
    char path[512];
    if (!who->needs)
        return true;
    snprintf(path, sizeof path, "%s/%s", peers ? peers : "", who->needs);
    return peers && access(path, R_OK) == 0;
}

/* Fills in the folder of the peers and adds the CPUs. */
static void complete_argv(const struct bench_contestant *who,
                          const char *peers,
                          int server_cpu,
                          char **ret_argv)
{
    static char texts[8][512], cpu[16];
    size_t n = 0;
    for (; who->argv[n]; n++) {
        if (who->argv[n][0] == '@')
            snprintf(texts[n], sizeof texts[n], "%s/%s", peers, who->argv[n] + 1);
        else
            snprintf(texts[n], sizeof texts[n], "%s", who->argv[n]);
        ret_argv[n] = texts[n];
    }
    snprintf(cpu, sizeof cpu, "%d", server_cpu);
    ret_argv[n++] = "0";
    ret_argv[n++] = cpu;
    ret_argv[n] = NULL;
}

static void enter(struct entrant *entrant, const struct bench_options *options, int server_cpu)
{
    int in[2], out[2];
    char line[128], *argv[12];
    if (!is_there(entrant->who, options->peers)) {
        bench_note("not installed: %s (%s)", entrant->who->name, entrant->who->install);
        return;
    }
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        bench_die("a pipe", strerror(errno));
    complete_argv(entrant->who, options->peers, server_cpu, argv);
    entrant->pid = strcmp(argv[0], "self") == 0 ? bench_spawn_self(argv, in[0], out[1])
                                                : bench_spawn(argv[0], argv, in[0], out[1]);
    entrant->in = in[1];
    entrant->out = out[0];
    close(in[0]);
    close(out[1]);
    if (!read_line(entrant, line, sizeof line) || strcmp(line, "ready") != 0)
        lose(entrant, "did not start");
    else if (entrant->who->setup)
        ask(entrant, entrant->who->setup, options->seconds);
}

/* ---- Rounds ---- */

static bool is_wanted(const struct course *course, size_t figure)
{
    return strstr(course->contest->figures[figure].name, course->options->only) != NULL;
}

static double take_turn(struct course *course, size_t figure, size_t who, int round)
{
    const struct bench_figure *what = &course->contest->figures[figure];
    char words[160];
    snprintf(words, sizeof words, "%s, round %d: %s, %s", course->placement, round + 1, what->name,
             course->contest->contestants[who].name);
    bench_progress(course->step++, course->n_steps, words);
    if (!is_wanted(course, figure))
        return MISSING;
    return ask(&course->entrants[who], what->question,
               what->seconds > 0 ? what->seconds : course->options->seconds);
}

/* Odd rounds have the reverse order, so that no contestant always follows the same one. */
static void run_round(struct course *course, int round)
{
    const struct bench_contest *contest = course->contest;
    for (size_t f = 0; f < contest->n_figures; f++) {
        bool busy = contest->figures[f].busy && is_wanted(course, f);
        if (busy)
            bench_load_begin();
        for (size_t i = 0; i < contest->n_contestants; i++) {
            size_t c = round % 2 ? contest->n_contestants - 1 - i : i;
            course->values[f][c][round] = take_turn(course, f, c, round);
        }
        if (busy)
            bench_load_end();
    }
}

/* ---- Reporting ---- */

/* Combines the values of two contestants from the rounds in which both were measured. */
static size_t combine(const struct course *course,
                      const struct bench_goal *goal,
                      double values[BENCH_MAX_ROUNDS])
{
    size_t n = 0;
    for (int round = 0; round < course->options->rounds; round++) {
        double value = course->values[goal->figure][goal->who][round];
        double base = course->values[goal->base_figure][goal->base_who][round];
        if (value == MISSING || (goal->measure != BENCH_VALUE && base == MISSING))
            continue;
        values[n++] = goal->measure == BENCH_RATIO        ? value / base
                      : goal->measure == BENCH_DIFFERENCE ? value - base
                                                          : value;
    }
    return n;
}

static void report_figure(const struct course *course, int figure, int who)
{
    const struct bench_contest *contest = course->contest;
    double values[BENCH_MAX_ROUNDS];
    struct bench_goal all = {.figure = figure, .who = who, .measure = BENCH_VALUE};
    const char *variant = contest->figures[figure].variant;
    char name[96];
    size_t n = combine(course, &all, values);
    if (n == 0)
        return;
    snprintf(name, sizeof name, "%s%s%s", contest->contestants[who].name, variant ? ", " : "",
             variant ? variant : "");
    struct bench_result result = {
        .figure = contest->figures[figure].name,
        .placement = course->placement,
        .who = name,
        .unit = contest->figures[figure].unit,
        .more_is_better = contest->figures[figure].more_is_better,
        .value = bench_spread_of(values, n),
    };
    if (contest->baseline >= 0 && contest->baseline != who) {
        all.measure = BENCH_RATIO;
        all.base_figure = figure;
        all.base_who = contest->baseline;
        n = combine(course, &all, values);
        result.ratio = bench_spread_of(values, n);
    }
    bench_result(&result);
}

/* Returns the limit of a goal as a value of its figure. */
static double limit_at(const struct course *course, const struct bench_goal *goal)
{
    double values[BENCH_MAX_ROUNDS];
    struct bench_goal base = {
        .figure = goal->base_figure, .who = goal->base_who, .measure = BENCH_VALUE};
    if (goal->measure == BENCH_VALUE)
        return goal->limit;
    size_t n = combine(course, &base, values);
    double value = bench_quantile(values, n, 0.5);
    return goal->measure == BENCH_RATIO ? value * goal->limit : value + goal->limit;
}

static void report_goal(const struct course *course, const struct bench_goal *goal)
{
    const struct bench_contest *contest = course->contest;
    double values[BENCH_MAX_ROUNDS];
    size_t n = combine(course, goal, values);
    if (n == 0)
        return;
    bench_goal(&(struct bench_verdict){
        .text = goal->text,
        .placement = course->placement,
        .figure = contest->figures[goal->figure].name,
        .who = contest->contestants[goal->who].name,
        .base = goal->measure == BENCH_VALUE ? NULL : contest->contestants[goal->base_who].name,
        .unit = goal->measure == BENCH_RATIO ? "x" : contest->figures[goal->figure].unit,
        .value = bench_spread_of(values, n),
        .at_least = goal->at_least,
        .limit = goal->limit,
        .at = limit_at(course, goal),
    });
}

static void report(const struct course *course, enum bench_placements placement)
{
    const struct bench_contest *contest = course->contest;
    for (size_t f = 0; f < contest->n_figures; f++)
        for (size_t c = 0; c < contest->n_contestants; c++)
            report_figure(course, (int)f, (int)c);
    for (size_t g = 0; g < contest->n_goals; g++)
        if (contest->goals[g].placements & placement)
            report_goal(course, &contest->goals[g]);
}

static void run_placement(struct course *course, enum bench_placements placement)
{
    const struct bench_contest *contest = course->contest;
    for (size_t c = 0; c < contest->n_contestants; c++) {
        char what[128];
        snprintf(what, sizeof what, "%s: starting %s", course->placement,
                 contest->contestants[c].name);
        bench_progress(course->step, course->n_steps, what);
        course->entrants[c].who = &contest->contestants[c];
        enter(&course->entrants[c], course->options, placement == BENCH_SPLIT);
    }
    for (int round = 0; round < course->options->rounds; round++)
        run_round(course, round);
    for (size_t c = 0; c < contest->n_contestants; c++)
        dismiss(&course->entrants[c]);
    report(course, placement);
}

void bench_contest_run(const struct bench_contest *contest, const struct bench_options *options)
{
    static struct course course;
    static const struct {
        enum bench_placements placement;
        const char *name;
    } placements[] = {{BENCH_SAME, "same"}, {BENCH_SPLIT, "split"}};
    bool any = false;
    for (size_t f = 0; f < contest->n_figures; f++)
        any |= strstr(contest->figures[f].name, options->only) != NULL;
    if (!any)
        return;
    signal(SIGPIPE, SIG_IGN);
    size_t step = 0,
           per_placement = (size_t)options->rounds * contest->n_figures * contest->n_contestants;
    for (size_t i = 0; i < 2; i++) {
        if (!(contest->placements & placements[i].placement))
            continue;
        course = (struct course){
            .contest = contest,
            .options = options,
            .placement = placements[i].name,
            .step = step,
            .n_steps = per_placement * (contest->placements == BENCH_BOTH ? 2 : 1),
        };
        run_placement(&course, placements[i].placement);
        step = course.step;
    }
}
