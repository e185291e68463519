/* The stores of a crowd: that of its run can be lost and come back empty; that of an earlier run
 * can give way to it. See crowd.h. */
#include <stdio.h>

#include "tests/lib/own_store.h"
#include "tests/sim/crowd.h"

/* crowd_store_free() releases the keys, because two views may have them. */
static tether_status run_through(void *userdata, struct tether__store_op *op)
{
    const struct store_view *view = userdata;
    return *view->is_lost
               ? tether_error_set(&op->cause, TETHER_EUNAVAILABLE, "the store has been lost")
               : tether__store_run(*view->inner, op);
}

static tether_status view_new(struct store_view *view,
                              tether_store **ret_store,
                              tether_error *reterr)
{
    tether_status st = tether_store_hash_new(view->inner, reterr);
    return st == TETHER_OK ? tether_test_store_new(run_through, view, 0, ret_store) : st;
}

tether_status crowd_store_new(struct crowd *crowd, tether_error *reterr)
{
    crowd->view = (struct store_view){&crowd->inner_store, &crowd->store_is_lost};
    return view_new(&crowd->view, &crowd->store, reterr);
}

tether_status crowd_store_new_earlier(struct crowd *crowd, int n_starts, tether_error *reterr)
{
    int64_t sum;
    crowd->earlier_view = (struct store_view){&crowd->earlier_inner_store, &crowd->earlier_is_lost};
    tether_status st = view_new(&crowd->earlier_view, &crowd->earlier_store, reterr);
    return st == TETHER_OK
               ? tether_store_add(crowd->earlier_store, "tether/starts", n_starts, 0, &sum, reterr)
               : st;
}

void crowd_store_give_way(struct crowd *crowd)
{
    tether_sim_note(crowd->sim, "the earlier run finds the store of this one");
    crowd->earlier_view = crowd->view;
}

void crowd_store_free(struct crowd *crowd)
{
    tether_store_release(crowd->store);
    tether_store_release(crowd->earlier_store);
    tether_store_release(crowd->inner_store);
    tether_store_release(crowd->earlier_inner_store);
}

void crowd_store_lose(struct crowd *crowd)
{
    tether_sim_note(crowd->sim, "the store is lost");
    crowd->store_is_lost = true;
    crowd->seen.store_losses++;
}

void crowd_store_return(struct crowd *crowd, bool is_empty)
{
    tether_error error = {0};
    tether_sim_note(crowd->sim, "the store is back%s", is_empty ? ", without its keys" : "");
    crowd->store_is_lost = false;
    crowd->store_back_at = tether_sim_now(crowd->sim);
    if (!is_empty)
        return;
    tether_store_release(crowd->inner_store);
    if (tether_store_hash_new(&crowd->inner_store, &error) != TETHER_OK)
        blame(crowd, "no new store: %s", error.message);
    crowd->seen.empty_stores++;
}

bool crowd_store_is_whole(const struct crowd *crowd)
{
    static const char *const run = "tether/run";
    bool is_there = false;
    return !crowd->store_is_lost && !store_is_founders(crowd) &&
           tether_store_check(crowd->inner_store, &run, 1, 0, &is_there, NULL) == TETHER_OK &&
           is_there;
}

void crowd_store_pass_id(struct crowd *crowd, const char *from, const char *to)
{
    char key[32];
    tether_buf record = TETHER_BUF_INIT;
    snprintf(key, sizeof key, "tether/worker/%s", from);
    if (tether_store_try_get(crowd->inner_store, key, 0, &record, NULL) == TETHER_OK) {
        snprintf(key, sizeof key, "tether/worker/%s", to);
        tether_store_set(crowd->inner_store, key, tether_buf_bytes(&record), 0, NULL);
    }
    tether_buf_fini(&record);
}
