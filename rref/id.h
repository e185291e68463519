/* Ids of objects and forks, and their forms on the wire. */
#ifndef TETHER_RREF_ID_H
#define TETHER_RREF_ID_H

#include "protos/rpc.pb-c.h"
#include "rref/rref.h"

static inline bool tether__id_equal(tether_rref_id a, tether_rref_id b)
{
    return a.creator == b.creator && a.incarnation == b.incarnation && a.counter == b.counter;
}

static inline bool tether__id_is_set(tether_rref_id id)
{
    return id.incarnation != 0;
}

static inline Tether__RefId tether__wire_id(tether_rref_id id)
{
    Tether__RefId wire = TETHER__REF_ID__INIT;
    wire.creator = id.creator;
    wire.incarnation = id.incarnation;
    wire.counter = id.counter;
    return wire;
}

/* Reads an id; an absent one becomes all zeros, which is not a valid id. */
static inline tether_rref_id tether__id_from_wire(const Tether__RefId *wire)
{
    if (!wire)
        return (tether_rref_id){0, 0, 0};
    return (tether_rref_id){wire->creator, (uint32_t)wire->incarnation, wire->counter};
}

static inline void tether__id_to_numbers(tether_rref_id id, uint64_t ret_numbers[3])
{
    ret_numbers[0] = id.creator;
    ret_numbers[1] = id.incarnation;
    ret_numbers[2] = id.counter;
}

/* Returns all zeros, which is not a valid id, unless there are three numbers. */
static inline tether_rref_id tether__id_from_numbers(const uint64_t *numbers, size_t n)
{
    if (n != 3)
        return (tether_rref_id){0, 0, 0};
    return (tether_rref_id){(uint32_t)numbers[0], (uint32_t)numbers[1], numbers[2]};
}

/* How many ids one UserDelete or ChildAccept may carry (docs/wire.md): the receiver holds the lock
 * once for all of them. */
#define TETHER__MAX_IDS 256

/* Returns how many ids the columns hold; 0 when the columns differ in length or `ids` is NULL. */
static inline size_t tether__ids_count(const Tether__RefIds *ids)
{
    return ids && ids->n_creator == ids->n_incarnation && ids->n_creator == ids->n_counter
               ? ids->n_creator
               : 0;
}

static inline tether_rref_id tether__ids_at(const Tether__RefIds *ids, size_t i)
{
    return (tether_rref_id){ids->creator[i], (uint32_t)ids->incarnation[i], ids->counter[i]};
}

#endif
