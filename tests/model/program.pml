/* Programs: operations on references and objects, crashes and restarts. See rref.pml. */

#define HELD(r) (r < n_forks && handle[r] && alive[holder[r]])
#define USABLE(r) (HELD(r) && (state[r] == PENDING || state[r] == CONFIRMED))
#define PASSABLE(r, b) \
    (USABLE(r) && forks_left > 0 && holder[r] != b && !fresh[LINK(holder[r], b)])

/* All operations on one reference, mostly at its holder. */
proctype reference(byte r)
{
end:
    do
    :: d_step {
        HELD(r) ->
        printf("%d releases %d\n", holder[r], r);
        handle[r] = 0;
        user_collect(r)
    }
    :: d_step {
        USABLE(r) && !ref_old[r] && uses_left > 0 ->
        printf("%d uses %d\n", holder[r], r);
        uses_left--;
        send_request(holder[r], O, FETCH, r)
    }
    :: d_step {
        USABLE(r) && !ref_old[r] && uses_left > 0 ->
        printf("%d passes %d to 0 in a call\n", holder[r], r);
        uses_left--;
        send_request(holder[r], O, CALL_OWN, r)
    }
    :: d_step { USABLE(r) && forks_left > 0 -> user_returns(r, holder[r]) }
    :: d_step { PASSABLE(r, 1) -> user_passes(r, holder[r], 1) }
    :: d_step { PASSABLE(r, 2) -> user_passes(r, holder[r], 2) }
#if USERS > 2
    :: d_step { PASSABLE(r, 3) -> user_passes(r, holder[r], 3) }
#endif
    :: d_step { /* remote() times out; the owner may know of it, and is told when we let go */
        giveups_left > 0 && r < n_forks && IS_FIRST(r) && state[r] == PENDING ->
        printf("remote() of %d times out at %d\n", r, holder[r]);
        giveups_left--;
        state[r] = BROKEN;
        user_collect(r)
    }
    :: d_step { /* remote() fails before its call has left: stream_cancel_locked() */
        withdraws_left > 0 && r < n_forks && IS_FIRST(r) && state[r] == PENDING &&
        request[LINK(holder[r], O)]??[eval(REMOTE), eval(r)] ->
        withdraws_left--;
        withdraw(r);
        check()
    }
    :: d_step {
        r < n_forks && asking[r] ->
        printf("%d asks for %d\n", holder[r], r);
        request_fork(r);
        check()
    }
    :: d_step { /* the deadline of a waiting request ends, at the owner */
        r < n_forks && waiting[r] && !IS(M_WAITING_FOREVER) ->
        printf("the request for %d, waiting, times out\n", r);
        answer(r, ETIMEOUT)
    }
    :: d_step {
        IS(M_WAITING_ENDED_LATE) && r < n_forks && waiting_old[r] && !unreported[LINK(O, holder[r])] ->
        answer(r, EFENCED)
    }
    :: d_step { /* no answer comes; again the owner may know of it */
        giveups_left > 0 && r < n_forks && !IS_FIRST(r) && state[r] == PENDING && !asking[r] ->
        printf("the fork-request of %d times out at %d\n", r, holder[r]);
        giveups_left--;
        known_to_owner[r] = 1;
        decide(r, false);
        check()
    }
    :: d_step {
        IS(M_PIN_TIMES_OUT) && r < n_forks && pinned[r] ->
        printf("%d waits no longer for %d to be accepted\n", minter[r], r);
        on_child_accept(r)
    }
    :: d_step { /* a call that cannot be decoded goes, and its references with it */
        IS(M_REFUSED_CALL_LEFT) && r < n_forks && state[r] == 0 && minter[r] != holder[r] &&
        holder[r] != O && minter[r] != O && TAKES(holder[r], minter[r]) &&
        request[LINK(minter[r], holder[r])]?[eval(CALL), eval(r)] ->
        printf("%d refuses the call with %d\n", holder[r], r);
        request[LINK(minter[r], holder[r])]?kind,f;
        state[r] = COLLECTED
    }
    od
}

#define OWNER_PASSABLE(o, b) \
    (o < n_objects && handles[o] > 0 && alive[O] && forks_left > 0 && !fresh[LINK(O, b)])

/* All operations on one object at its owner. */
proctype owner(byte o)
{
end:
    do
    :: d_step {
        o < n_objects && making[o] ->
        printf("0 has made object %d\n", o);
        owner_made(o)
    }
    :: d_step {
        o < n_objects && handles[o] > 0 ->
        printf("0 releases object %d\n", o);
        handles[o]--;
        owner_collect(o)
    }
    :: d_step { OWNER_PASSABLE(o, 1) -> owner_passes(o, 1) }
    :: d_step { OWNER_PASSABLE(o, 2) -> owner_passes(o, 2) }
#if USERS > 2
    :: d_step { OWNER_PASSABLE(o, 3) -> owner_passes(o, 3) }
#endif
    od
}

proctype worker(byte a)
{
end:
    do
    :: d_step {
        a != O && alive[a] && objects_left > 0 && forks_left > 0 && !fresh[LINK(a, O)] ->
        remote(a, false)
    }
    :: d_step {
        a != O && alive[a] && large_left > 0 && forks_left > 0 && !fresh[LINK(a, O)] ->
        remote(a, true)
    }
    :: d_step { a == O && own_left > 0 && alive[O] -> rref_new() }
    :: d_step { crashes_left > 0 && alive[a] -> crash(a) }
    :: d_step {
        restarts_left > 0 && !alive[a] && start[a] == 0 && !(late && a == 2 && alive[1]) ->
        restart(a)
    }
    od
}
