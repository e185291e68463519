/* A pipeline: texts go through three stages on three workers. Each stage is a remote object, and
 * worker 0 connects all calls before the first result exists.
 *
 *     tether-run --nproc-per-node=4 -- pipeline
 *
 * Look at tether_rref_remote(): it calls a method, leaves the result on the worker that made it,
 * and returns a reference at once, before the result exists. feed() passes that reference to the
 * next stage, which waits for the result. So the texts go from stage to stage and never through
 * worker 0, and the stages work at the same time, each on another text.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rref/rref.h"

#define STAGES 3
#define WORK_MS 20 /* the time of a text in a stage */

/* ---- A stage: changes one text at a time ---- */

struct stage {
    char kind[16];
    pthread_mutex_t mu; /* one text at a time */
};

static void stage_destroy(void *object)
{
    struct stage *stage = object;
    printf("stage %s is gone\n", stage->kind);
    pthread_mutex_destroy(&stage->mu);
    free(stage);
}

static const tether_type stage_type = {.name = "stage", .destroy = stage_destroy};

static tether_status make_stage(void *ud,
                                const tether_value *kind,
                                tether_value **ret,
                                tether_error *err)
{
    (void)ud;
    struct stage *stage = calloc(1, sizeof *stage);
    if (!stage)
        return tether_error_set(err, TETHER_ENOMEM, "out of memory for a stage");
    snprintf(stage->kind, sizeof stage->kind, "%s", tether_value_str(kind));
    pthread_mutex_init(&stage->mu, NULL);
    tether_status st = tether_value_new_object(&stage_type, stage, ret, err);
    if (st != TETHER_OK)
        free(stage);
    return st;
}

static void change(const char *kind, char *text)
{
    size_t len = strlen(text);
    if (strcmp(kind, "reverse") == 0)
        for (size_t i = 0; i < len / 2; i++) {
            char c = text[i];
            text[i] = text[len - 1 - i];
            text[len - 1 - i] = c;
        }
    else if (strcmp(kind, "upper") == 0)
        for (size_t i = 0; i < len; i++)
            text[i] = (char)toupper((unsigned char)text[i]);
}

/* "stage.apply": the text is the argument, or the object of the attached reference. */
static tether_status apply(void *ud,
                           void *object,
                           const tether_value *arg,
                           tether_value **ret,
                           tether_error *err)
{
    struct stage *stage = object;
    tether_value *fetched = NULL;
    tether_status st = TETHER_OK;
    char text[256];
    (void)ud;
    if (tether_value_n_rrefs(arg)) /* fetches it from the worker that creates it, once it exists */
        st = tether_rref_to_here(tether_value_rref(arg, 0), TETHER_DEFAULT_MS, &fetched, err);
    if (st != TETHER_OK)
        return st;
    snprintf(text, sizeof text, "%s", tether_value_str(fetched ? fetched : arg));
    tether_value_release(fetched);
    pthread_mutex_lock(&stage->mu);
    nanosleep(&(struct timespec){0, WORK_MS * 1000000}, NULL); /* the work */
    change(stage->kind, text);
    pthread_mutex_unlock(&stage->mu);
    return tether_value_printf(ret, err, strcmp(stage->kind, "quote") == 0 ? "\"%s\"" : "%s", text);
}

/* ---- Connecting the stages, on worker 0 ---- */

/* Sends a text through all stages; returns a reference to the result of the last. */
static tether_rref *feed(tether_rref *const *stages, tether_value *text)
{
    tether_rref *promise = NULL;
    for (int i = 0; i < STAGES; i++) {
        tether_value *arg = NULL;
        if (promise && (tether_value_printf(&arg, NULL, "promise") != TETHER_OK ||
                        tether_value_attach(arg, promise, NULL) != TETHER_OK))
            abort(); /* no memory */
        tether_rref *next =
            tether_rref_remote(stages[i], "apply", arg ? arg : text, TETHER_DEFAULT_MS);
        tether_value_release(arg);
        tether_rref_release(promise); /* the next stage holds a reference now */
        promise = next;
    }
    return promise;
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static tether_status run(tether_agent *agent, tether_error *err)
{
    static const char *const kinds[STAGES] = {"reverse", "upper", "quote"};
    static const char *const texts[] = {"tether", "stressed", "drawer", "spoons",
                                        "loop",   "parts",    "emit",   "flow"};
    enum { TEXTS = sizeof texts / sizeof *texts };
    tether_rref *stages[STAGES], *results[TEXTS];
    double begin = now_ms();
    if (tether_agent_world_size(agent) < 2)
        return tether_error_set(err, TETHER_EINVAL,
                                "the stages need other workers: start two or more");
    for (int i = 0; i < STAGES; i++) {
        char name[32];
        tether_value *kind = NULL;
        snprintf(name, sizeof name, "worker%d", 1 + i % (tether_agent_world_size(agent) - 1));
        tether_value_printf(&kind, NULL, "%s", kinds[i]);
        stages[i] = tether_remote(agent, name, "make_stage", kind, TETHER_DEFAULT_MS);
        tether_value_release(kind);
    }
    for (int i = 0; i < TEXTS; i++) {
        tether_value *text = NULL;
        tether_value_printf(&text, NULL, "%s", texts[i]);
        results[i] = feed(stages, text);
        tether_value_release(text);
    }
    printf("%d texts on their way through %d stages after %.1f ms\n", TEXTS, STAGES,
           now_ms() - begin);
    for (int i = 0; i < TEXTS; i++) {
        tether_value *text = NULL;
        if (!err->code && !tether_rref_to_here(results[i], TETHER_DEFAULT_MS, &text, err))
            printf("%-9s -> %s\n", texts[i], tether_value_str(text));
        tether_value_release(text);
        tether_rref_release(results[i]);
    }
    printf("%.0f ms; one after the other it would be %d ms\n", now_ms() - begin,
           TEXTS * STAGES * WORK_MS);
    for (int i = 0; i < STAGES; i++)
        tether_rref_release(stages[i]);
    return err->code;
}

int main(void)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://"), &agent, &err) ||
        tether_agent_register_inline(agent, "make_stage", make_stage, NULL, &err) ||
        tether_agent_register_method(agent, &stage_type, "apply", apply, false, NULL, &err) ||
        tether_agent_start(agent, &err) || (tether_agent_rank(agent) == 0 && run(agent, &err)) ||
        tether_agent_shutdown(agent, true, &err))
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    tether_agent_release(agent);
    return err.code != TETHER_OK;
}
