/* Rosters: sorted arrays of members. */
#include "rendezvous/elastic/rules/roster.h"

#include <string.h>

#include "base/alloc.h"

void tether__rdzv_roster_fini(struct tether__rdzv_roster *roster)
{
    for (size_t i = 0; i < roster->n; i++)
        tether__free(roster->members[i]);
    tether__free(roster->members);
    memset(roster, 0, sizeof *roster);
}

tether_status tether__rdzv_roster_reserve(struct tether__rdzv_roster *roster, size_t extra)
{
    size_t need = roster->n + extra;
    if (need <= roster->cap)
        return TETHER_OK;
    size_t cap = roster->cap ? roster->cap : 8;
    while (cap < need)
        cap *= 2;
    struct tether__rdzv_member **members =
        tether__realloc(roster->members, cap * sizeof *roster->members);
    if (!members)
        return TETHER_ENOMEM;
    roster->members = members;
    roster->cap = cap;
    return TETHER_OK;
}

/* Returns the index of `node`, or where to insert it. Tries the end first, because most lists are
 * built in order.
 */
static size_t position(const struct tether__rdzv_roster *roster,
                       const struct tether__rdzv_node *node,
                       bool *ret_found)
{
    size_t low = 0, high = roster->n;
    *ret_found = false;
    if (high > 0 && tether__rdzv_node_compare(&roster->members[high - 1]->node, node) < 0)
        return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = tether__rdzv_node_compare(&roster->members[middle]->node, node);
        if (order == 0) {
            *ret_found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct tether__rdzv_member *tether__rdzv_roster_find(const struct tether__rdzv_roster *roster,
                                                     const struct tether__rdzv_node *node)
{
    bool found;
    size_t at = position(roster, node, &found);
    return found ? roster->members[at] : NULL;
}

static struct tether__rdzv_member *new_member(const struct tether__rdzv_node *node)
{
    size_t len = strlen(node->addr) + 1;
    struct tether__rdzv_member *member = tether__calloc(1, sizeof *member + len);
    if (!member)
        return NULL;
    memcpy(member->addr_, node->addr, len);
    member->node = *node;
    member->node.addr = member->addr_;
    member->hint = member->previous = -1;
    return member;
}

static void put_at(struct tether__rdzv_roster *roster,
                   size_t at,
                   struct tether__rdzv_member *member)
{
    memmove(&roster->members[at + 1], &roster->members[at],
            (roster->n - at) * sizeof *roster->members);
    roster->members[at] = member;
    roster->n++;
}

static struct tether__rdzv_member *take_at(struct tether__rdzv_roster *roster, size_t at)
{
    struct tether__rdzv_member *member = roster->members[at];
    roster->n--;
    memmove(&roster->members[at], &roster->members[at + 1],
            (roster->n - at) * sizeof *roster->members);
    return member;
}

struct tether__rdzv_member *tether__rdzv_roster_add(struct tether__rdzv_roster *roster,
                                                    const struct tether__rdzv_node *node)
{
    bool found;
    size_t at = position(roster, node, &found);
    if (found)
        return roster->members[at];
    if (tether__rdzv_roster_reserve(roster, 1) != TETHER_OK)
        return NULL;
    struct tether__rdzv_member *member = new_member(node);
    if (member)
        put_at(roster, at, member);
    return member;
}

bool tether__rdzv_roster_remove(struct tether__rdzv_roster *roster,
                                const struct tether__rdzv_node *node)
{
    bool found;
    size_t at = position(roster, node, &found);
    if (found)
        tether__free(take_at(roster, at));
    return found;
}

tether_status tether__rdzv_roster_move(struct tether__rdzv_roster *to,
                                       struct tether__rdzv_roster *from,
                                       const struct tether__rdzv_node *node)
{
    bool found;
    size_t at = position(from, node, &found);
    if (!found)
        return TETHER_ENOTFOUND;
    if (tether__rdzv_roster_reserve(to, 1) != TETHER_OK)
        return TETHER_ENOMEM;
    struct tether__rdzv_member *member = take_at(from, at);
    at = position(to, &member->node, &found);
    if (found) {
        tether__free(to->members[at]);
        to->members[at] = member;
    } else {
        put_at(to, at, member);
    }
    return TETHER_OK;
}
