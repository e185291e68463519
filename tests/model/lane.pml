/* Sending: frames that go into a lane, and their end when no worker takes them. See rref.pml. */

/* A frame that no worker will take. */
inline lost(sort, item)
{
    if
    :: (sort == CALL || sort == RESULT) && state[item] == 0 ->
        state[item] = COLLECTED;
        excused[item] = 1
    :: else
    fi
}

inline send_request(from, to, what, about)
{
    if
    :: alive[to] && known[LINK(from, to)] == start[to] ->
        assert(len(request[LINK(from, to)]) < LANE);
        request[LINK(from, to)]!what,about
    :: else -> lost(what, about)
    fi
}

inline send_reply(from, to, what, about)
{
    if
    :: alive[to] && known[LINK(from, to)] == start[to] ->
        assert(len(reply[LINK(from, to)]) < LANE);
        reply[LINK(from, to)]!what,about
    :: else -> lost(what, about)
    fi
}

inline clear(src, dst)
{
    do
    :: len(request[LINK(src, dst)]) > 0 -> request[LINK(src, dst)]?kind,g; lost(kind, g)
    :: len(reply[LINK(src, dst)]) > 0 -> reply[LINK(src, dst)]?kind,g; lost(kind, g)
    :: else -> break
    od
}

/* A new fork; its number is in `g`. */
inline mint(thing, by, heir, own_ref)
{
    forks_left--;
    g = n_forks;
    n_forks++;
    object[g] = thing;
    minter[g] = by;
    holder[g] = heir;
    parent[g] = own_ref;
    excused[g] = !(AGREED(by, O) && AGREED(by, heir) && AGREED(heir, O)) ||
                 life[thing] == NEVER || (own_ref != NONE && ref_old[own_ref])
}
