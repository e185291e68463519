/* The run that the store belongs to, and the numbers of its starts. See directory.h for the keys.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/group/directory.h"

/* Stores the value of the key `run` in the directory, if it is a valid run. */
static tether_status take_run(struct tether__directory *directory,
                              const tether_buf *value,
                              tether_error *reterr)
{
    if (value->len != TETHER__RUN_SIZE - 1 ||
        strspn(value->data, "0123456789abcdef") != TETHER__RUN_SIZE - 1)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "the store's key 'run' has a value that Tether did not write");
    memcpy(directory->run, value->data, TETHER__RUN_SIZE);
    return TETHER_OK;
}

static void draw_run(char ret_run[TETHER__RUN_SIZE])
{
    uint8_t bytes[(TETHER__RUN_SIZE - 1) / 2];
    arc4random_buf(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(ret_run + 2 * i, 3, "%02x", bytes[i]);
}

tether_status tether__directory_enter_run(struct tether__directory *directory,
                                          int timeout_ms,
                                          tether_error *reterr)
{
    char fresh[TETHER__RUN_SIZE];
    tether_buf found = TETHER_BUF_INIT;
    draw_run(fresh);
    tether_status st =
        tether_store_compare_set(directory->store, "run", tether_bytes_of(NULL, 0),
                                 tether_bytes_str(fresh), timeout_ms, NULL, &found, reterr);
    if (st == TETHER_OK)
        st = take_run(directory, &found, reterr);
    tether_buf_fini(&found);
    return st;
}

tether_status tether__directory_find_run(struct tether__directory *directory,
                                         int timeout_ms,
                                         tether_error *reterr)
{
    tether_buf found = TETHER_BUF_INIT;
    tether_status st = tether_store_try_get(directory->store, "run", timeout_ms, &found, reterr);
    if (st == TETHER_ENOTFOUND)
        tether_error_set(reterr, st,
                         "no worker of this group has joined at %s: check the store and the group",
                         tether_store_describe(directory->store));
    if (st == TETHER_OK)
        st = take_run(directory, &found, reterr);
    tether_buf_fini(&found);
    return st;
}

tether_status tether__directory_count_start(struct tether__directory *directory,
                                            int timeout_ms,
                                            uint64_t *ret_incarnation,
                                            tether_error *reterr)
{
    int64_t sum;
    tether_status st = tether_store_add(directory->store, "starts", 1, timeout_ms, &sum, reterr);
    if (st == TETHER_OK && (sum < 1 || sum > UINT32_MAX))
        st = tether_error_set(reterr, TETHER_ECORRUPT,
                              "the store's key 'starts' is %lld, which Tether did not count",
                              (long long)sum);
    if (st == TETHER_OK)
        *ret_incarnation = (uint64_t)sum;
    return st;
}

const char *tether__directory_store_name(const struct tether__directory *directory)
{
    return tether_store_describe(tether_store_underlying_non_prefix(directory->store));
}

tether_status tether__directory_other_run(const struct tether__directory *directory,
                                          tether_error *reterr)
{
    return tether_error_set(reterr, TETHER_EUNAVAILABLE,
                            "the store at %.60s belongs to another run of the group than this "
                            "worker: end the workers of the earlier run",
                            tether__directory_store_name(directory));
}

tether_status tether__directory_check_run(struct tether__directory *directory,
                                          int timeout_ms,
                                          tether_error *reterr)
{
    tether_buf found = TETHER_BUF_INIT;
    tether_status st = tether_store_try_get(directory->store, "run", timeout_ms, &found, reterr);
    if (st == TETHER_OK && strcmp(found.data ? found.data : "", directory->run) != 0)
        st = tether__directory_other_run(directory, reterr);
    else if (st != TETHER_OK && st != TETHER_ENOTFOUND)
        st = TETHER_EUNAVAILABLE;
    tether_buf_fini(&found);
    return st;
}

tether_status tether__directory_restore(struct tether__directory *directory,
                                        uint64_t start,
                                        int timeout_ms,
                                        tether_error *reterr)
{
    char text[24];
    tether_buf found = TETHER_BUF_INIT;
    const tether_bytes nothing = {NULL, 0};
    snprintf(text, sizeof text, "%llu", (unsigned long long)start);
    /* Restore the counter first: a worker that finds the run must not draw a number that was drawn
     * before. */
    tether_status st =
        tether_store_compare_set(directory->store, "starts", nothing, tether_bytes_str(text),
                                 timeout_ms, NULL, NULL, reterr);
    if (st == TETHER_OK)
        st = tether_store_compare_set(directory->store, "run", nothing,
                                      tether_bytes_str(directory->run), timeout_ms, NULL, &found,
                                      reterr);
    if (st == TETHER_OK && strcmp(found.data ? found.data : "", directory->run) != 0)
        st = tether__directory_other_run(directory, reterr);
    tether_buf_fini(&found);
    return st;
}
