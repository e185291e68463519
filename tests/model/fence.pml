/* The end of a session, of a worker, and what begins after it. See rref.pml. */

/* ---- The end of a session: peer.c, session.c, session.c -------------------------------------- */

/* The worker that has to be fenced for the fork to go. */
#define HELD_BY(r) (IS(M_MINTER_HOLDS) -> minter[r] : holder[r])

/* peer_end_session_locked(): nothing more of it goes out or comes in. */
inline end_session(self, other)
{
    met[LINK(self, other)] = 0;
    suspect[LINK(self, other)] = 0;
    unreported[LINK(self, other)] = 1;
    clear(self, other);
    for (i : 0 .. n_forks - 1) {
        fork_old[i] = fork_old[i] || (self == O && forked[i] && HELD_BY(i) == other);
        waiting_old[i] = waiting_old[i] || (self == O && waiting[i] && holder[i] == other);
        pin_old[i] = pin_old[i] || (pinned[i] && minter[i] == self && holder[i] == other);
        ref_old[i] = ref_old[i] || (other == O && holder[i] == self && state[i] != 0 &&
                                    state[i] != COLLECTED);
        excused[i] = excused[i] || (UNDECIDED(i) && INVOLVES(i, self) && INVOLVES(i, other))
    }
    for (i : 0 .. n_objects - 1) {
        maker_left[i] = maker_left[i] || (self == O && creator[i] == other && making[i]);
        expected_old[i] = expected_old[i] || (self == O && creator[i] == other && expected[i])
    }
    hand_old[self] = hand_old[self] || (hand_kind[self] != 0 && hand_from[self] == other)
}

/* refs_session_ended(): items of the ended session go, later ones stay. */
inline fenced(me, peer)
{
    unreported[LINK(me, peer)] = 0;
    hand_over[me] = hand_over[me] || (hand_old[me] && hand_from[me] == peer);
    for (i : 0 .. n_forks - 1) {
        if
        :: me == O && fork_old[i] && HELD_BY(i) == peer && !IS(M_FORKS_OUTLIVE_FENCE) ->
            fork_remove(i)
        :: else
        fi;
        if
        :: me == O && waiting_old[i] && holder[i] == peer && IS(M_WAITING_OUTLIVE_FENCE) ->
            waiting_old[i] = 0
        :: me == O && waiting_old[i] && holder[i] == peer && mutant != M_WAITING_OUTLIVE_FENCE &&
           mutant != M_WAITING_ENDED_LATE ->
            answer(i, EFENCED)
        :: else
        fi;
        if
        :: me == O && waiting[i] && creator[object[i]] == peer && !IS(M_WAITING_FOREVER) &&
           (creator_start[object[i]] < known[LINK(O, peer)] || !met[LINK(O, peer)]) ->
            refuse(i);
            answer(i, EGONE)
        :: else
        fi;
        if
        :: pin_old[i] && minter[i] == me && holder[i] == peer && !IS(M_PINS_OUTLIVE_FENCE) ->
            on_child_accept(i)
        :: else
        fi;
        if
        :: peer == O && holder[i] == me && ref_old[i] && IS(M_NO_BREAK) ->
            ref_old[i] = 0;
            decide(i, false) /* the calls that wait have failed */
        :: peer == O && holder[i] == me && ref_old[i] && !IS(M_NO_BREAK) ->
            known_to_owner[i] = 0; /* it has forgotten us */
            if
            :: state[i] == PENDING && !asking[i] -> decide(i, false)
            :: state[i] == CONFIRMED || (state[i] == PENDING && asking[i]) -> state[i] = BROKEN
            :: else
            fi
        :: else
        fi
    }
    for (i : 0 .. n_objects - 1) { /* objects that will not be made are broken, until no worker has them */
        if
        :: me == O && expected_old[i] && creator[i] == peer -> expected[i] = 0; expected_old[i] = 0
        :: else
        fi
    }
}

/* The work after an unlock (rpc/peer/after.h). */
inline settle(mine, theirs)
{
    if
    :: !threads -> fenced(mine, theirs)
    :: else
    fi
}

/* session_fence(): we give the other up, and take nothing more that it has sent. That may be thrown
 * away at once, unless nothing has come through in the session that it is in: then it may keep what
 * it has queued (catch_up()). */
inline fence(a, b)
{
    printf("%d fences %d\n", a, b);
    epoch[LINK(a, b)]++;
    if
    :: (met[LINK(b, a)] || !alive[b]) && !IS(M_OLD_FRAMES) -> clear(b, a)
    :: else
    fi;
    end_session(a, b);
    settle(a, b);
    check()
}

/* session_on_hello(): the other is in a later session than we. */
inline fenced_by_peer(a, b)
{
    printf("%d learns that %d has fenced it\n", a, b);
    epoch[LINK(a, b)] = epoch[LINK(b, a)];
    end_session(a, b);
    met[LINK(a, b)] = 1;
    settle(a, b);
    check()
}

/* The same where nothing has come through in our session: nothing can have been lost. */
inline catch_up(a, b)
{
    printf("%d joins the session that %d is in\n", a, b);
    epoch[LINK(a, b)] = epoch[LINK(b, a)];
    met[LINK(a, b)] = 1;
    check()
}

inline forget_start(n, p)
{
    fresh[LINK(n, p)] = 0;
    suspect[LINK(n, p)] = 0;
    epoch[LINK(n, p)] = 0;
    if
    :: known[LINK(n, p)] != start[p] ->
        known[LINK(n, p)] = start[p];
        end_session(n, p);
        met[LINK(n, p)] = 1;
        settle(n, p)
    :: else -> met[LINK(n, p)] = 1
    fi
}

/* The first hello of two workers after one, or both, were started again. */
inline hello_again(a, b)
{
    printf("%d and %d meet, one of them restarted\n", a, b);
    clear(a, b);
    clear(b, a);
    forget_start(a, b);
    forget_start(b, a);
    check()
}

/* ---- Crash and restart --------------------------------------------------------------------- */

inline forget_fork(gone)
{
    forked[gone] = 0;
    fork_old[gone] = 0;
    waiting[gone] = 0;
    waiting_old[gone] = 0;
    fork_was[gone] = 0
}

inline forget_ref(gone)
{
    state[gone] = COLLECTED;
    handle[gone] = 0;
    known_to_owner[gone] = 0;
    ref_old[gone] = 0;
    asking[gone] = 0;
    excused[gone] = 1
}

inline forget_object(gone)
{
    in_table[gone] = 0;
    making[gone] = 0;
    maker_left[gone] = 0;
    expected[gone] = 0;
    expected_old[gone] = 0;
    handles[gone] = 0;
    life[gone] = DEAD
}

/* Messages that the worker has sent may still arrive. Its memory, and messages to it, are lost. */
inline crash(a)
{
    printf("%d crashes\n", a);
    crashes_left--;
    alive[a] = 0;
    for (i : 0 .. N - 1) {
        if
        :: i != a ->
            clear(i, a);
            suspect[LINK(a, i)] = 0;
            unreported[LINK(a, i)] = 0;
            suspect[LINK(i, a)] = alive[i] && !fresh[LINK(i, a)]
        :: else
        fi
    }
    if
    :: hand_kind[a] != 0 -> lost(hand_kind[a], hand_fork[a])
    :: else
    fi;
    hand_kind[a] = 0;
    hand_fork[a] = 0;
    hand_from[a] = 0;
    hand_old[a] = 0;
    hand_over[a] = 0;
    for (i : 0 .. n_forks - 1) {
        excused[i] = excused[i] || (UNDECIDED(i) && INVOLVES(i, a));
        if
        :: minter[i] == a -> pinned[i] = 0; pin_old[i] = 0
        :: else
        fi;
        if
        :: holder[i] == a && state[i] != 0 -> forget_ref(i)
        :: else
        fi;
        if
        :: a == O -> forget_fork(i)
        :: else
        fi
    }
    if
    :: a == O ->
        for (i : 0 .. n_objects - 1) { forget_object(i) }
        for (i : 0 .. N * 2 - 1) { watermark[i] = 0 }
    :: else
    fi
}

inline restart(a)
{
    printf("%d starts again\n", a);
    restarts_left--;
    alive[a] = 1;
    start[a]++;
    incarnation[a] = (IS(M_STARTS_OF_NAME) && late && a == 2 -> incarnation[1] : n_incarnations);
    n_incarnations = n_incarnations + (incarnation[a] == n_incarnations);
    next_counter[a] = 0;
    for (i : 0 .. N - 1) {
        if
        :: i != a -> fresh[LINK(a, i)] = 1
        :: else
        fi
    }
    i = 0
}
