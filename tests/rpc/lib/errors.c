/* See the header. */
#include "tests/rpc/lib/errors.h"

#include <string.h>

#include "rpc/agent/internal.h"
#include "tests/lib/cmocka.h"

static struct tether__task *waiting_task;
static void (*submit)(void *userdata, tether_agent *agent, struct tether__task *task);

void assert_says(const tether_error *err, const char *words)
{
    if (!strstr(err->message, words))
        fail_msg("'%s' is not in: %s", words, err->message);
}

static void keep_task(void *userdata, tether_agent *agent, struct tether__task *task)
{
    (void)userdata, (void)agent;
    waiting_task = task;
}

void occupy_threads(struct tether_test_world *world)
{
    submit = tether_sim_hooks(world->sim)->submit;
    tether_sim_hooks(world->sim)->submit = keep_task;
}

void free_threads(struct tether_test_world *world)
{
    tether_sim_hooks(world->sim)->submit = submit;
    submit(world->sim, world->agents[1], waiting_task);
}
