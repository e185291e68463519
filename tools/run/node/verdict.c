/* The verdict's key and its text. */
#include "tools/run/node/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define KEY "verdict"

static const char *const words[] = {
    [RUN_UNDECIDED] = "undecided", [RUN_SUCCEEDED] = "succeeded", [RUN_RESTART] = "restart",
    [RUN_REFORM] = "reform",       [RUN_FAILED] = "failed",
};

static tether_status parse(const tether_buf *text,
                           struct run_verdict *ret_verdict,
                           tether_error *reterr)
{
    struct run_verdict verdict = {RUN_UNDECIDED, 0, ""};
    char word[16] = "";
    int after_number = 0;
    if (text->len > 0 &&
        sscanf(text->data, "%15s %d %n", word, &verdict.restarts, &after_number) == 2)
        for (size_t i = RUN_SUCCEEDED; i < sizeof words / sizeof words[0]; i++)
            if (strcmp(word, words[i]) == 0)
                verdict.outcome = (enum run_outcome)i;
    if (verdict.outcome == RUN_UNDECIDED || verdict.restarts < 0)
        return tether_error_set(reterr, TETHER_ECORRUPT,
                                "the verdict in the store is '%.60s': another program uses this "
                                "--rdzv-id, or another version of tether-run",
                                text->data ? text->data : "");
    tether__text_fit(verdict.why, sizeof verdict.why, tether_bytes_str(text->data + after_number));
    *ret_verdict = verdict;
    return TETHER_OK;
}

tether_status run_verdict_propose(tether_store *round_store,
                                  struct run_verdict *verdict,
                                  int timeout_ms,
                                  tether_error *reterr)
{
    tether_buf text = TETHER_BUF_INIT, standing = TETHER_BUF_INIT;
    tether_status st = tether_buf_printf(&text, "%s %d %s", words[verdict->outcome],
                                         verdict->restarts, verdict->why);
    if (st != TETHER_OK)
        st = tether_error_set(reterr, st, "out of memory for the verdict");
    else
        st = tether_store_compare_set(round_store, KEY, tether_bytes_of(NULL, 0),
                                      tether_buf_bytes(&text), timeout_ms, NULL, &standing, reterr);
    if (st == TETHER_OK)
        st = parse(&standing, verdict, reterr);
    tether_buf_fini(&text);
    tether_buf_fini(&standing);
    return st;
}

tether_status run_verdict_await(tether_store *round_store,
                                int timeout_ms,
                                struct run_verdict *ret_verdict,
                                tether_error *reterr)
{
    tether_buf text = TETHER_BUF_INIT;
    tether_status st = tether_store_get(round_store, KEY, timeout_ms, &text, reterr);
    if (st == TETHER_OK)
        st = parse(&text, ret_verdict, reterr);
    tether_buf_fini(&text);
    return st;
}
