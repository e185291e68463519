/* The user of references: taking them in, giving them back, passing them on. See rref.pml.
 */

/* ---- At a user: context.c, receive.c, create.c --------------------------------------------- */

/* The last count goes when there is no handle, no pin and no confirmation under way. */
inline user_collect(ref)
{
    m = 0;
    do
    :: m < n_forks && !(pinned[m] && parent[m] == ref) -> m++
    :: else -> break
    od;
    if
    :: m == n_forks && !handle[ref] && !asking[ref] &&
       (state[ref] == CONFIRMED || state[ref] == BROKEN) ->
        if
        :: known_to_owner[ref] && !ref_old[ref] -> send_request(holder[ref], O, USER_DELETE, ref)
        :: else
        fi;
        known_to_owner[ref] = 0;
        ref_old[ref] = 0;
        excused[ref] = 1;
        state[ref] = COLLECTED
    :: else
    fi
}

inline accept(taken)
{
    send_request(holder[taken], minter[taken], CHILD_ACCEPT, taken)
}

/* The owner has answered, or never will. If the reference was passed on, the value that it is in
 * goes to the program, which then has a handle, or is refused, and there is no handle. */
inline decide(decided, ok)
{
    if
    :: state[decided] == PENDING ->
        state[decided] = (ok -> CONFIRMED : BROKEN);
        known_to_owner[decided] = known_to_owner[decided] || ok;
        if
        :: !IS_FIRST(decided) ->
            handle[decided] = ok;
            if
            :: !IS(M_ACCEPT_BEFORE_ANSWER) -> accept(decided)
            :: else
            fi
        :: else
        fi;
        excused[decided] = 1;
        user_collect(decided)
    :: else
    fi
}

/* The reference is of the session that the owner is asked in. If it was broken meanwhile, the owner
 * must not be asked. */
inline request_fork(asks)
{
    asking[asks] = 0;
    if
    :: state[asks] == BROKEN && !IS(M_ASK_THOUGH_BROKEN) ->
        accept(asks);
        user_collect(asks)
    :: else ->
        if
        :: state[asks] == PENDING -> ref_old[asks] = 0
        :: else -> accept(asks); user_collect(asks)
        fi;
        send_request(holder[asks], O, FORK_REQUEST, asks);
        COUNTS_ON(holder[asks], O)
    fi
}

/* A reference to another worker's object has arrived. */
inline take_other(other)
{
    if
    :: minter[other] == O && over -> /* broken from the start */
        state[other] = COLLECTED;
        excused[other] = 1
    :: minter[other] == O && !over -> /* from the owner, who has counted us */
        state[other] = CONFIRMED;
        ref_old[other] = old;
        known_to_owner[other] = 1;
        handle[other] = 1;
        excused[other] = 1;
        COUNTS_ON(holder[other], O)
    :: else ->
        state[other] = PENDING;
        handle[other] = IS(M_RUN_BEFORE_ANSWER);
        if
        :: IS(M_ACCEPT_BEFORE_ANSWER) -> accept(other)
        :: else
        fi;
        if
        :: fresh[LINK(holder[other], O)] -> decide(other, false) /* there is no owner to ask */
        :: threads && !fresh[LINK(holder[other], O)] ->
            asking[other] = 1;
            COUNTS_ON(holder[other], O)
        :: else -> request_fork(other)
        fi
    fi
}

inline on_child_accept(child)
{
    if
    :: pinned[child] ->
        pinned[child] = 0;
        pin_old[child] = 0;
        user_collect(parent[child])
    :: else /* said twice */
    fi
}

/* ---- What programs do ---------------------------------------------------------------------- */

inline new_object(by_whom, where)
{
    x = n_objects;
    n_objects++;
    creator[x] = by_whom;
    creator_start[x] = start[by_whom];
    made_by[x] = incarnation[by_whom];
    next_counter[by_whom]++;
    counter[x] = next_counter[by_whom];
    owner_start[x] = where
}

inline remote(a, large)
{
    printf("%d makes object %d by remote(), fork %d\n", a, n_objects, n_forks);
    new_object(a, known[LINK(a, O)]);
    life[x] = COMING;
    mint(x, a, a, NONE);
    excused[g] = 1;
    state[g] = PENDING;
    handle[g] = 1;
    known_to_owner[g] = 1;
    COUNTS_ON(a, O);
    if
    :: large ->
        large_left--;
        send_request(a, O, ANNOUNCE, g);
        send_request(a, O, LARGE_REMOTE, g)
    :: else ->
        objects_left--;
        send_request(a, O, REMOTE, g)
    fi
}

/* The call is taken out of the lane, and workers that were passed the reference are to hear so. */
inline withdraw(r)
{
    printf("%d withdraws remote() of %d, which was not sent\n", holder[r], r);
    request[LINK(holder[r], O)]??eval(REMOTE),eval(r);
    life[object[r]] = NEVER;
    for (i : 0 .. n_forks - 1) {
        excused[i] = excused[i] || object[i] == object[r]
    }
    state[r] = BROKEN;
    known_to_owner[r] = 0;
    user_collect(r)
}

inline rref_new()
{
    printf("0 makes object %d\n", n_objects);
    own_left--;
    new_object(O, start[O]);
    life[x] = LIVE;
    in_table[x] = 1;
    handles[x] = 1
}

inline owner_passes(o, b)
{
    printf("0 passes object %d to %d, fork %d\n", o, b, n_forks);
    mint(o, O, b, NONE);
    fork_add(g, 0);
    send_request(O, b, CALL, g)
}

inline pin(keeper, child)
{
    pinned[g] = 1;
    COUNTS_ON(keeper, child)
}

/* To another user, in a call; in a reply it would be the same. */
inline user_passes(r, a, b)
{
    printf("%d passes %d to %d in a call, fork %d\n", a, r, b, n_forks);
    mint(object[r], a, b, r);
    if
    :: !IS(M_NO_PIN) -> pin(a, b)
    :: else
    fi;
    send_request(a, b, CALL, g)
}

/* To its owner, in a reply. */
inline user_returns(r, a)
{
    printf("%d passes %d to 0 in a reply, fork %d\n", a, r, n_forks);
    mint(object[r], a, O, r);
    if
    :: !IS(M_REPLY_WITHOUT_PIN) -> pin(a, O)
    :: else
    fi;
    send_reply(a, O, RESULT, g)
}
