/* Functions that several schemes share: the parameters rank, world_size and switches. */
#include <limits.h>
#include <strings.h>

#include "rendezvous/url/handlers.h"

tether_status tether__check_rank(int rank, int world_size, tether_error *reterr)
{
    if (rank < world_size)
        return TETHER_OK;
    return tether_error_set(reterr, TETHER_EINVAL,
                            "rank %d is outside a world of %d: ranks go from 0 to %d", rank,
                            world_size, world_size - 1);
}

tether_status tether__url_node(const struct tether__url *url,
                               int *ret_rank,
                               int *ret_world_size,
                               tether_error *reterr)
{
    const char *rank_text = tether__url_param(url, "rank");
    const char *size_text = tether__url_param(url, "world_size");
    if (!rank_text)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%s:// rendezvous: rank parameter missing: add rank=N to the query "
                                "or pass the rank",
                                url->scheme);
    if (!size_text)
        return tether_error_set(reterr, TETHER_EINVAL,
                                "%s:// rendezvous: world size parameter missing: add world_size=N "
                                "to the query or pass the world size",
                                url->scheme);
    int rank = 0, world_size = 0;
    tether_status st = tether__parse_int(rank_text, "rank", 0, INT_MAX, &rank, reterr);
    if (st == TETHER_OK)
        st = tether__parse_int(size_text, "world_size", 1, INT_MAX, &world_size, reterr);
    if (st == TETHER_OK)
        st = tether__check_rank(rank, world_size, reterr);
    if (st != TETHER_OK)
        return tether_error_wrap(reterr, st, "%s:// rendezvous", url->scheme);
    *ret_rank = rank;
    *ret_world_size = world_size;
    return TETHER_OK;
}

tether_status tether__parse_bool(const char *text,
                                 const char *what,
                                 bool *ret_value,
                                 tether_error *reterr)
{
    static const char *const words[2][3] = {{"0", "false", "no"}, {"1", "true", "yes"}};
    for (int value = 0; value < 2; value++)
        for (int i = 0; i < 3; i++)
            if (strcasecmp(text, words[value][i]) == 0) {
                *ret_value = value;
                return TETHER_OK;
            }
    return tether_error_set(reterr, TETHER_EINVAL, "%s is '%.32s': write 1 or 0", what, text);
}

tether_status tether__url_switch(const struct tether__url *url,
                                 const char *key,
                                 bool *ret_value,
                                 tether_error *reterr)
{
    const char *text = tether__url_param(url, key);
    return text ? tether__parse_bool(text, key, ret_value, reterr) : TETHER_OK;
}
