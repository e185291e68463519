/* The owner: its table of objects, their forks, and the requests of others. See rref.pml.
 */

/* ---- At the owner: context.c --------------------------------------------------------------- */

inline owner_find(id)
{
    found = NONE;
    for (k : 0 .. n_objects - 1) {
        if
        :: in_table[k] && counter[k] == counter[id] &&
           (made_by[k] == made_by[id] || (IS(M_ID_WITHOUT_START) && creator[k] == creator[id])) ->
            found = k
        :: else
        fi
    }
    DEMAND("breaks S3\n", found == NONE || found == id)
}

#define IS_ME(o) (owner_start[o] == start[O] || IS(M_ANY_OWNER_START))
#define MARK(o) (IS(M_WATERMARK_OF_ALL_STARTS) -> creator[o] : made_by[o])
#define HAS_PASSED(o) (!in_table[o] && watermark[MARK(o)] >= counter[o])
#define MAY_COME(o) \
    (creator[o] != O && (watermark[MARK(o)] < counter[o] || IS(M_NO_WATERMARK)))
#define REFERS(r, o) (object[r] == o && holder[r] != O && state[r] == CONFIRMED && !ref_old[r])

inline destroy(unused)
{
    life[unused] = (life[unused] == LIVE -> DEAD : life[unused]); /* it may never have been made */
    for (k : 0 .. n_forks - 1) {
        DEMAND("breaks S1\n", !(REFERS(k, unused) && SAME(holder[k], O)))
    }
}

inline owner_collect(entry)
{
    if
    :: in_table[entry] && !making[entry] && handles[entry] == 0 ->
        k = 0;
        do
        :: k < n_forks && !(forked[k] && object[k] == entry) -> k++
        :: else -> break
        od;
        if
        :: k < n_forks
        :: else ->
            in_table[entry] = 0;
            expected[entry] = 0;
            expected_old[entry] = 0;
            destroy(entry)
        fi
    :: else
    fi
}

inline fork_add(added, ended)
{
    if
    :: forked[added] /* said twice */
    :: else ->
        DEMAND("breaks S4\n", fork_was[added] != DEAD);
        forked[added] = 1;
        fork_old[added] = ended;
        fork_was[added] = LIVE;
        COUNTS_ON(O, holder[added])
    fi
}

inline fork_remove(removed)
{
    forked[removed] = 0;
    fork_old[removed] = 0;
    fork_was[removed] = DEAD;
    owner_collect(object[removed])
}

/* J, and P, after every step that could break them. */
inline check()
{
    for (k : 0 .. n_forks - 1) {
        DEMAND("breaks P\n", !(waiting[k] && HAS_PASSED(object[k]) && mutant != M_NO_WATERMARK));
        DEMAND("breaks J\n", !(REFERS(k, object[k]) && SAME(holder[k], O) && !forked[k]))
    }
    k = 0
}

inline refuse(refused)
{
    DEMAND("breaks S2\n", excused[refused])
}

inline may_come(hoped)
{
    DEMAND("breaks P\n", life[hoped] == COMING || life[hoped] == NEVER)
}

/* ---- At the owner: receive.c, create.c, waiting.c ------------------------------------------- */

/* Answers the worker that has asked, unless its session has ended. */
inline answer(asker, verdict)
{
    waiting[asker] = 0;
    if
    :: !waiting_old[asker] -> send_reply(O, holder[asker], verdict, asker)
    :: else
    fi;
    waiting_old[asker] = 0
}

inline unpark(now_here)
{
    for (j : 0 .. n_forks - 1) {
        if
        :: waiting[j] && object[j] == now_here ->
            if
            :: !waiting_old[j] || IS(M_WAITING_ENDED_LATE) -> fork_add(j, waiting_old[j])
            :: else
            fi;
            answer(j, OK)
        :: else
        fi
    }
}

/* refuse_passed(): the watermark has risen, so the objects that it has passed cannot be created any
 * more: refuse the requests that wait for them. */
inline refuse_passed()
{
    for (j : 0 .. n_forks - 1) {
        if
        :: waiting[j] && HAS_PASSED(object[j]) ->
            refuse(j);
            answer(j, EGONE)
        :: else
        fi
    }
}

inline on_fork_request(asked)
{
    x = object[asked];
    owner_find(x);
    if
    :: IS_ME(x) && found != NONE ->
        fork_add(asked, old);
        waiting_old[asked] = old;
        answer(asked, OK)
    :: IS_ME(x) && found == NONE && MAY_COME(x) ->
        may_come(x);
        waiting[asked] = 1;
        waiting_old[asked] = old;
        COUNTS_ON(O, holder[asked])
    :: else ->
        refuse(asked);
        waiting_old[asked] = old;
        answer(asked, EGONE)
    fi
}

inline on_user_delete(deleted)
{
    owner_find(object[deleted]);
    if
    :: found != NONE && forked[deleted] -> fork_remove(deleted)
    :: waiting[deleted] && !IS(M_WAITING_OUTLIVE_DELETE) -> /* it has not come to a fork yet */
        waiting[deleted] = 0;
        waiting_old[deleted] = 0
    :: else
    fi
}

/* Our own object comes back: `found` tells whether there is one. If the call that makes it is still
 * on its way, its entry is there from now on. */
inline take_own(back)
{
    owner_find(back);
    if
    :: IS_ME(back) && found != NONE -> handles[back]++
    :: IS_ME(back) && found == NONE && MAY_COME(back) && !IS(M_OWN_NOT_EXPECTED) ->
        may_come(back);
        in_table[back] = 1;
        expected[back] = 1;
        handles[back] = 1;
        found = back
    :: else -> found = NONE
    fi
}

inline find_used(wanted)
{
    DEMAND("breaks U\n", old || found != NONE || life[wanted] == NEVER)
}

inline on_result(came)
{
    take_own(object[came]);
    if
    :: found == NONE -> refuse(came)
    :: else
    fi;
    state[came] = COLLECTED;
    excused[came] = 1;
    send_request(O, minter[came], CHILD_ACCEPT, came)
}

/* Entry, watermark and first fork, when the call or its announcement arrives. */
inline enter_object(first, ahead)
{
    x = object[first];
    expected[x] = ahead;
    expected_old[x] = ahead && old;
    in_table[x] = 1;
    if
    :: counter[x] > watermark[MARK(x)] -> watermark[MARK(x)] = counter[x]
    :: else
    fi;
    fork_add(first, old);
    unpark(x);
    if
    :: !IS(M_PASSED_NOT_EXAMINED) && !IS(M_NO_WATERMARK) -> refuse_passed()
    :: else
    fi
}

inline remote_arrived(call)
{
    owner_find(object[call]);
    DEMAND("breaks S4\n", !in_table[object[call]] || expected[object[call]]);
    making[object[call]] = 1;
    maker_left[object[call]] = old;
    life[object[call]] = LIVE;
    if
    :: !IS(M_REGISTER_WHEN_MADE) -> enter_object(call, false)
    :: else
    fi
}

inline on_announce(told)
{
    if
    :: !IS(M_LARGE_NOT_ANNOUNCED) -> enter_object(told, true)
    :: else
    fi
}

inline large_remote_arrived(large)
{
    x = object[large];
    if
    :: IS(M_LARGE_NOT_ANNOUNCED) || (IS(M_ANNOUNCED_IS_MADE) && !in_table[x]) ->
        remote_arrived(large)
    :: mutant != M_LARGE_NOT_ANNOUNCED && in_table[x] && expected[x] ->
        expected[x] = 0;
        expected_old[x] = 0;
        making[x] = 1;
        maker_left[x] = old;
        life[x] = LIVE
    :: else /* its creator has released it since */
    fi
}

/* The function that makes the object has returned. */
inline owner_made(o)
{
    old = maker_left[o];
    f = 0; /* its first fork */
    do
    :: !(object[f] == o && IS_FIRST(f)) -> f++
    :: else -> break
    od;
    making[o] = 0;
    if
    :: IS(M_REGISTER_WHEN_MADE) -> enter_object(f, false)
    :: else
    fi;
    if
    :: !maker_left[o] -> send_reply(O, creator[o], OK, f)
    :: else
    fi;
    maker_left[o] = 0;
    owner_collect(o)
}
