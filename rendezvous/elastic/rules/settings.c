/* Settings: defaults, fields from text, and checks. */
#include "rendezvous/elastic/rules/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* a year: no wait needs longer, and sums of such times can't overflow */
#define MAX_MS INT64_C(31536000000)
#define MAX_RUN_ID 255

/* The fields that have a name in configuration text. */
static const struct field {
    const char *name;  /* name of the field in configuration text */
    const char *words; /* name of the field in error messages */
    size_t offset;     /* offset of the field in struct tether_rdzv_settings */
    enum { MILLISECONDS, COUNT } unit;
} fields[] = {
#define FIELD(f) offsetof(struct tether_rdzv_settings, f)
    {"join_timeout", "join timeout", FIELD(timeouts.join_ms), MILLISECONDS},
    {"last_call_timeout", "last call timeout", FIELD(timeouts.last_call_ms), MILLISECONDS},
    {"close_timeout", "close timeout", FIELD(timeouts.close_ms), MILLISECONDS},
    {"heartbeat_timeout", "heartbeat timeout", FIELD(timeouts.heartbeat_ms), MILLISECONDS},
    {"keep_alive_interval", "keep-alive interval", FIELD(keep_alive_interval_ms), MILLISECONDS},
    {"keep_alive_max_attempt", "number of keep-alive attempts", FIELD(keep_alive_max_attempts),
     COUNT},
    {"rank_hint", "rank hint", FIELD(rank_hint), COUNT},
#undef FIELD
};

void tether_rdzv_settings_init(struct tether_rdzv_settings *settings)
{
    memset(settings, 0, sizeof *settings);
    settings->size = sizeof *settings;
    settings->timeouts = (struct tether_rdzv_timeouts){
        .join_ms = TETHER_RDZV_JOIN_MS,
        .last_call_ms = TETHER_RDZV_LAST_CALL_MS,
        .close_ms = TETHER_RDZV_CLOSE_MS,
        .heartbeat_ms = TETHER_RDZV_HEARTBEAT_MS,
    };
    settings->keep_alive_interval_ms = TETHER_RDZV_KEEP_ALIVE_INTERVAL_MS;
    settings->keep_alive_max_attempts = TETHER_RDZV_KEEP_ALIVE_MAX_ATTEMPTS;
    settings->rank_hint = -1;
}

static tether_status check_ms(const struct field *field, int64_t ms, tether_error *reterr)
{
    if (ms <= 0)
        return tether_error_set(reterr, TETHER_EINVAL, "the %s (%g s) must be positive",
                                field->words, (double)ms / 1000);
    if (ms > MAX_MS)
        return tether_error_set(reterr, TETHER_EINVAL, "the %s (%g s) must be at most a year",
                                field->words, (double)ms / 1000);
    return TETHER_OK;
}

static tether_status parse_ms(const struct field *field,
                              const char *value,
                              int64_t *ret_ms,
                              tether_error *reterr)
{
    char *end;
    errno = 0;
    double seconds = tether__text_to_double(value, &end);
    if (end == value || *end != '\0' || errno == ERANGE || !isfinite(seconds) ||
        fabs(seconds) > 2.0 * MAX_MS / 1000)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the %s must be a number of seconds, not '%s'", field->words,
                                value);
    double ms = seconds * 1000;
    /* Rounds up, so that a positive time never becomes zero. */
    *ret_ms = (int64_t)ceil(ms);
    return check_ms(field, *ret_ms, reterr);
}

static tether_status parse_count(const struct field *field,
                                 const char *value,
                                 int *ret_count,
                                 tether_error *reterr)
{
    char *end;
    errno = 0;
    long count = strtol(value, &end, 10);
    if (end == value || *end != '\0' || errno == ERANGE || count < -1 ||
        count > TETHER_RDZV_MAX_NODES)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the %s must be a whole number up to %d, not '%s'", field->words,
                                TETHER_RDZV_MAX_NODES, value);
    *ret_count = (int)count;
    return TETHER_OK;
}

tether_status tether_rdzv_settings_set(struct tether_rdzv_settings *settings,
                                       const char *name,
                                       const char *value,
                                       tether_error *reterr)
{
    for (size_t i = 0; i < TETHER__ARRAY_LEN(fields); i++) {
        if (strcmp(fields[i].name, name) != 0)
            continue;
        void *target = (char *)settings + fields[i].offset;
        if (fields[i].unit == COUNT)
            return parse_count(&fields[i], value, target, reterr);
        int64_t ms = 0;
        tether_status st = parse_ms(&fields[i], value, &ms, reterr);
        if (st == TETHER_OK)
            *(int64_t *)target = ms;
        return st;
    }
    return tether_error_set(reterr, TETHER_EINVAL,
                            "there is no rendezvous setting '%s': join_timeout, last_call_timeout, "
                            "close_timeout, heartbeat_timeout, keep_alive_interval, "
                            "keep_alive_max_attempt and rank_hint can be set",
                            name);
}

tether_status tether_rdzv_settings_check(const struct tether_rdzv_settings *settings,
                                         tether_error *reterr)
{
    if (settings->size != sizeof *settings)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the rendezvous settings have size %zu instead of %zu: call "
                                "tether_rdzv_settings_init() on them first",
                                settings->size, sizeof *settings);
    if (!settings->run_id || settings->run_id[0] == '\0' || strlen(settings->run_id) > MAX_RUN_ID)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the run id must have 1 to %d characters: it names the job",
                                MAX_RUN_ID);
    if (settings->min_nodes <= 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the minimum number of nodes (%d) must be greater than zero",
                                settings->min_nodes);
    if (settings->max_nodes < settings->min_nodes)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the maximum number of nodes (%d) must be greater than or equal to "
                                "the minimum number of nodes (%d)",
                                settings->max_nodes, settings->min_nodes);
    if (settings->max_nodes > TETHER_RDZV_MAX_NODES)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the maximum number of nodes (%d) must be at most %d",
                                settings->max_nodes, TETHER_RDZV_MAX_NODES);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(fields); i++) {
        if (fields[i].unit != MILLISECONDS)
            continue;
        int64_t ms = *(const int64_t *)((const char *)settings + fields[i].offset);
        tether_status st = check_ms(&fields[i], ms, reterr);
        if (st != TETHER_OK)
            return st;
    }
    if (settings->keep_alive_max_attempts <= 0)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the number of keep-alive attempts (%d) must be positive",
                                settings->keep_alive_max_attempts);
    if (settings->rank_hint < -1 || settings->rank_hint >= settings->max_nodes)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "the rank hint (%d) must be below the maximum number of nodes "
                                "(%d), or -1 for none",
                                settings->rank_hint, settings->max_nodes);
    return TETHER_OK;
}
