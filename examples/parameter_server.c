/* A parameter server: three trainers fit a line to noisy points. The weights are on worker 0; the
 * trainers hold a reference to them, fetch them, and send back gradients.
 *
 *     tether-run --nproc-per-node=4 -- parameter_server
 *
 * Look at `struct model`, an object with a type. Worker 0 owns it (tether_rref_new) and passes a
 * reference to each trainer with the call of "train" (tether_value_attach). A trainer copies the
 * weights with to_here(), which serialises them, and changes them in place with the method
 * "descend". The program counts no references: when the last "train" has returned, only worker 0
 * holds the model, and its release destroys it.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rref/rref.h"

#define ROUNDS 16
#define STEPS 8   /* of each trainer in each round */
#define POINTS 32 /* of a trainer */
#define RATE 0.006

/* ---- The model: y = slope * x + offset ---- */

struct weights {
    double slope, offset;
};

struct model {
    pthread_mutex_t mu;
    struct weights weights; /* under mu */
};

static void model_destroy(void *object)
{
    struct model *model = object;
    pthread_mutex_destroy(&model->mu);
    free(model);
    puts("the model is gone");
}

static tether_status model_serialise(const void *object, tether_buf *ret, tether_error *err)
{
    struct model *model = (struct model *)object;
    (void)err;
    pthread_mutex_lock(&model->mu);
    struct weights weights = model->weights;
    pthread_mutex_unlock(&model->mu);
    return tether_buf_append(ret, tether_bytes_of(&weights, sizeof weights));
}

/* No deserialise: a worker that fetches the model gets the bytes, a struct weights. */
static const tether_type model_type = {"model", model_destroy, model_serialise, NULL};

static tether_status as_weights(const tether_value *value, struct weights *ret, tether_error *err)
{
    tether_bytes bytes = tether_value_bytes(value);
    if (bytes.len != sizeof *ret)
        return tether_error_set(err, TETHER_ECORRUPT, "%zu bytes are no weights", bytes.len);
    memcpy(ret, bytes.data, sizeof *ret);
    return TETHER_OK;
}

static tether_status model_descend(void *ud,
                                   void *object,
                                   const tether_value *arg,
                                   tether_value **ret,
                                   tether_error *err)
{
    struct model *model = object;
    struct weights gradient;
    (void)ud, (void)ret;
    tether_status st = as_weights(arg, &gradient, err);
    if (st != TETHER_OK)
        return st;
    pthread_mutex_lock(&model->mu);
    model->weights.slope -= RATE * gradient.slope;
    model->weights.offset -= RATE * gradient.offset;
    pthread_mutex_unlock(&model->mu);
    return TETHER_OK;
}

/* ---- A trainer ---- */

/* Takes one step: fetches the weights, and sends the gradient over this trainer's points. */
static tether_status step(tether_rref *model, unsigned seed, double *ret_loss, tether_error *err)
{
    struct weights now, gradient = {0, 0};
    tether_value *copy = NULL, *arg = NULL;
    double loss = 0;
    tether_status st = tether_rref_to_here(model, TETHER_DEFAULT_MS, &copy, err);
    if (st == TETHER_OK)
        st = as_weights(copy, &now, err);
    for (int i = 0; st == TETHER_OK && i < POINTS; i++) {
        double x = 4.0 * rand_r(&seed) / RAND_MAX - 2;
        double noise = 0.2 * rand_r(&seed) / RAND_MAX - 0.1;
        double error = now.slope * x + now.offset - (3 * x - 1 + noise);
        gradient.slope += 2 * error * x / POINTS;
        gradient.offset += 2 * error / POINTS;
        loss += error * error / POINTS;
    }
    if (st == TETHER_OK)
        st = tether_value_new(tether_bytes_of(&gradient, sizeof gradient), &arg, err);
    if (st == TETHER_OK)
        st = tether_rref_sync(model, "descend", arg, TETHER_DEFAULT_MS, NULL, err);
    tether_value_release(arg);
    tether_value_release(copy);
    *ret_loss = loss;
    return st;
}

/* "train": takes some steps with the model in the argument; returns the loss of the last one. */
static tether_status train(void *ud, const tether_value *arg, tether_value **ret, tether_error *err)
{
    tether_agent *agent = ud;
    double loss = 0;
    tether_status st = TETHER_OK;
    for (int i = 0; st == TETHER_OK && i < STEPS; i++)
        st = step(tether_value_rref(arg, 0), (unsigned)tether_agent_rank(agent), &loss, err);
    return st == TETHER_OK ? tether_value_printf(ret, err, "%.9f", loss) : st;
}

/* ---- The server ---- */

/* Runs a round of all trainers at once; returns the mean of their losses. */
static tether_status play_round(tether_agent *agent,
                                const tether_value *arg,
                                double *ret_loss,
                                tether_error *err)
{
    enum { MAX = 64 };
    tether_future *futures[MAX];
    int n = 0;
    double sum = 0;
    for (int rank = 1; rank < tether_agent_world_size(agent) && n < MAX; rank++) {
        char name[32];
        snprintf(name, sizeof name, "worker%d", rank);
        futures[n++] = tether_rpc_async(agent, name, "train", arg, TETHER_DEFAULT_MS);
    }
    for (int i = 0; i < n; i++) {
        tether_value *loss = NULL;
        tether_future_wait(futures[i], TETHER_DEFAULT_MS, &loss, err->code ? NULL : err);
        sum += atof(tether_value_str(loss));
        tether_value_release(loss);
        tether_future_release(futures[i]);
    }
    if (n == 0)
        tether_error_set(err, TETHER_EINVAL, "there is no trainer: start two workers or more");
    *ret_loss = n ? sum / n : 0;
    return err->code;
}

static tether_status serve(tether_agent *agent, tether_error *err)
{
    struct model *model = calloc(1, sizeof *model);
    tether_value *object = NULL, *arg = NULL;
    tether_rref *rref = NULL;
    double first = 0, loss = 0;
    if (!model || tether_value_new_object(&model_type, model, &object, err) != TETHER_OK) {
        free(model);
        return tether_error_set(err, TETHER_ENOMEM, "out of memory for the model");
    }
    pthread_mutex_init(&model->mu, NULL);
    if (tether_rref_new(agent, object, &rref, err) || tether_value_printf(&arg, err, "round") ||
        tether_value_attach(arg, rref, err))
        goto out;
    for (int i = 0; i < ROUNDS && play_round(agent, arg, &loss, err) == TETHER_OK; i++) {
        first = i ? first : loss;
        int bar = (int)(12 + 6 * log10(loss + 1e-9)); /* six characters for each power of ten */
        printf("round %2d  loss %9.6f  %.*s\n", i + 1, loss, bar > 0 ? bar : 0,
               "########################################");
    }
    printf("slope %.2f, offset %.2f\n", model->weights.slope, model->weights.offset);
    if (!err->code && loss > first / 10)
        tether_error_set(err, TETHER_EINTERNAL, "the loss did not fall: %g, then %g", first, loss);
out:
    tether_value_release(arg);
    tether_rref_release(rref);
    tether_value_release(object);
    return err->code;
}

int main(void)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://"), &agent, &err) ||
        tether_agent_register_method(agent, &model_type, "descend", model_descend, true, NULL,
                                     &err) ||
        tether_agent_register(agent, "train", train, agent, &err) ||
        tether_agent_start(agent, &err) || (tether_agent_rank(agent) == 0 && serve(agent, &err)) ||
        tether_agent_shutdown(agent, true, &err))
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    tether_agent_release(agent);
    return err.code != TETHER_OK;
}
