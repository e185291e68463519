/* Receiving a message, and all else that happens to a worker by another. See rref.pml. */

inline handle_request(what, about)
{
    if
    :: (what == REMOTE || what == ANNOUNCE || what == FORK_REQUEST) && over
    :: what == REMOTE && !over -> remote_arrived(about)
    :: what == ANNOUNCE && !over -> on_announce(about)
    :: what == LARGE_REMOTE -> large_remote_arrived(about)
    :: what == FORK_REQUEST && !over -> on_fork_request(about)
    :: what == CALL -> take_other(about)
    :: what == CALL_OWN -> take_own(object[about]); find_used(object[about])
    :: what == FETCH -> owner_find(object[about]); find_used(object[about])
    :: what == CHILD_ACCEPT -> on_child_accept(about)
    :: what == USER_DELETE -> on_user_delete(about)
    fi;
    check()
}

inline handle_reply(what, about)
{
    if
    :: what == OK -> decide(about, true)
    :: what == EGONE || what == ETIMEOUT -> decide(about, false)
    :: what == RESULT -> on_result(about)
    fi;
    check()
}

inline take_request(a, b)
{
    met[LINK(a, b)] = 1;
    met[LINK(b, a)] = 1;
    old = 0;
    over = 0;
    request[LINK(b, a)]?kind,f
}

/* Frames of `b` are for this start of `a` and for the session that it is in. One who was restarted
 * meets the owner before it takes references to its objects. */
#define TAKES(a, b)                                                                          \
    (alive[a] && !fresh[LINK(a, b)] && known[LINK(b, a)] == start[a] &&                      \
     (epoch[LINK(b, a)] == epoch[LINK(a, b)] || IS(M_OLD_FRAMES)) &&                         \
     (a == O || !fresh[LINK(a, O)] || !alive[O]))
#define OVERTAKEN(a, b)                                                                      \
    (IS(M_NO_LANE) || request[LINK(b, a)]?[LARGE_REMOTE, _])

/* Only for the story that pan -r tells. */
inline tell(what, about, sender)
{
    if
    :: what == REMOTE -> printf("REMOTE")
    :: what == ANNOUNCE -> printf("ANNOUNCE")
    :: what == LARGE_REMOTE -> printf("LARGE_REMOTE")
    :: what == CALL -> printf("CALL")
    :: what == CALL_OWN -> printf("CALL_OWN")
    :: what == FORK_REQUEST -> printf("FORK_REQUEST")
    :: what == CHILD_ACCEPT -> printf("CHILD_ACCEPT")
    :: what == USER_DELETE -> printf("USER_DELETE")
    :: what == FETCH -> printf("FETCH")
    :: what == RESULT -> printf("RESULT")
    :: what == OK -> printf("OK")
    :: what == EGONE -> printf("EGONE")
    :: what == ETIMEOUT -> printf("ETIMEOUT")
    fi;
    printf(" %d of %d\n", about, sender)
}

/* All that can happen to worker `a` by another. */
proctype link(byte a; byte b)
{
end:
    do
    :: d_step {
        !threads && TAKES(a, b) && len(request[LINK(b, a)]) > 0 ->
        take_request(a, b);
        printf("%d handles ", a); tell(kind, f, b);
        handle_request(kind, f)
    }
    :: d_step {
        threads && TAKES(a, b) && hand_kind[a] == 0 && len(request[LINK(b, a)]) > 0 ->
        take_request(a, b);
        printf("%d takes ", a); tell(kind, f, b);
        hand_kind[a] = kind;
        hand_fork[a] = f;
        hand_from[a] = b
    }
    :: d_step {
        hand_kind[a] != 0 && hand_from[a] == b ->
        kind = hand_kind[a];
        f = hand_fork[a];
        old = hand_old[a] && !IS(M_EPOCH_READ_LATE);
        over = old && hand_over[a];
        hand_kind[a] = 0;
        hand_fork[a] = 0;
        hand_from[a] = 0;
        hand_old[a] = 0;
        hand_over[a] = 0;
        printf("%d handles ", a); tell(kind, f, b);
        handle_request(kind, f)
    }
    :: d_step {
        TAKES(a, b) && len(reply[LINK(b, a)]) > 0 ->
        met[LINK(a, b)] = 1;
        met[LINK(b, a)] = 1;
        reply[LINK(b, a)]?kind,f;
        printf("%d handles ", a); tell(kind, f, b);
        handle_reply(kind, f)
    }
    :: d_step {
        alive[a] && unreported[LINK(a, b)] ->
        printf("%d settles the session with %d that has ended\n", a, b);
        fenced(a, b);
        check()
    }
    :: d_step { /* the lease runs out although it is alive */
        fences_left > 0 && alive[a] && !fresh[LINK(a, b)] ->
        fences_left--;
        fence(a, b)
    }
    :: d_step { alive[a] && !alive[b] && suspect[LINK(a, b)] -> fence(a, b) }
    :: d_step {
        alive[a] && alive[b] && ACQUAINTED(a, b) && epoch[LINK(a, b)] < epoch[LINK(b, a)] ->
        fenced_by_peer(a, b)
    }
    :: d_step {
        alive[a] && alive[b] && ACQUAINTED(a, b) && epoch[LINK(a, b)] < epoch[LINK(b, a)] &&
        !met[LINK(a, b)] ->
        catch_up(a, b)
    }
    :: d_step { a < b && alive[a] && alive[b] && !ACQUAINTED(a, b) -> hello_again(a, b) }
    :: d_step { /* a frame comes, and will come again */
        duplicates_left > 0 && IS(M_NO_LANE) && TAKES(a, b) && len(request[LINK(b, a)]) > 0 ->
        duplicates_left--;
        request[LINK(b, a)]?<kind,f>;
        printf("%d handles, and will again, ", a); tell(kind, f, b);
        old = 0;
        over = 0;
        handle_request(kind, f)
    }
    :: d_step { /* a frame is overtaken by those behind it */
        len(request[LINK(b, a)]) > 1 && OVERTAKEN(a, b) ->
        request[LINK(b, a)]?kind,f;
        printf("those behind it overtake "); tell(kind, f, b);
        request[LINK(b, a)]!kind,f
    }
    od
}
