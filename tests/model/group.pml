/* A group and its store: the run, the numbers of starts, and the connections of workers while the
 * store is lost, comes back empty, or is joined by newcomers. Names are those of rpc/group
 * (directory.c, join.c) and rpc/peer (reach.c, handshake.c).
 *
 * Worker A has a session with worker B; both are alive throughout. L is a leftover worker of an
 * earlier run: it has B's name, listens at B's address, and has a higher start. It takes the store
 * of this run for its own. Newcomers join the group.
 *
 * Properties that must hold:
 *   R  the session of A and B does not end: connections break, dials fail, the store is lost     end_session()
 *   T  no worker meets L                                                                         meet_leftover()
 *   D  no two starts of a run have the same number                                               count_start()
 *   Q  when nothing can happen any more, A and B are connected, also if the store is lost for good;
 *      a store that is there and has the run has B's record, too                                 quiescence()
 *
 * Mutants, each of which must break the property named in group_model_test.sh: the macro below is 0.
 *
 * Left out: a lease that runs out, which rref.pml and pairing_model.c have; a leftover that
 * finds an empty store before any worker of this run does, and a newcomer that does: each then has a
 * run of its own there, and the error says so. Two operations on the store are not atomic: a store
 * that loses its keys between the two of a newcomer, or a second time between the two of a worker
 * that restores them, may give a newcomer a number again. The model does not lose keys there.
 */
#ifndef RUN_IN_HELLO /* a listener compares the run of a Hello1 with its own */
#define RUN_IN_HELLO 1
#endif
#ifndef KNOWN_ADDRESS /* an address that is known is dialled without the store */
#define KNOWN_ADDRESS 1
#endif
#ifndef LIVE_SESSION /* "not found" does not end a session that is met */
#define LIVE_SESSION 1
#endif
#ifndef REGISTERS_AGAIN /* a worker whose record is missing puts it back */
#define REGISTERS_AGAIN 1
#endif
#ifndef CHECKS_RUN /* a worker does not write to the store of another run */
#define CHECKS_RUN 1
#endif
#ifndef STARTS_FIRST /* the numbers are put back before the run */
#define STARTS_FIRST 1
#endif
#ifndef FROM_CLOCK /* they go on above all that were drawn, heard of or not */
#define FROM_CLOCK 1
#endif

#define A 0
#define B 1
#define NONE 0
#define OURS 1
#define EARLIER 2
#define NEWER 3 /* that of a newcomer who found no run */

#define START_B 2
#define START_L 9

/* ---- What may still happen ---- */
byte losses_left = 2, cuts_left = 2, strays_left = 2, failures_left = 1, lookups_left = 3;
byte newcomers_left = 2;

/* ---- The store ---- */
bit is_lost;
byte store_run = OURS; /* the key "run" */
byte starts = START_B; /* the key "starts"; 0: it is missing */
byte record = START_B; /* the key "worker/B": the start in it; 0: it is missing */
byte record_run = OURS;

byte highest = START_B; /* of our run, of all that were ever drawn */

/* ---- A, of B ---- */
bit is_up;         /* a stream is */
bit record_is_old; /* the directory is to be asked */

/* ---- Workers that put a store in order, and newcomers: between two operations on the store ---- */
byte restoring[2]; /* A, B: how far directory_restore() has got */
bit joining;       /* a newcomer knows its run, and has no number yet */
byte newcomer_run;

#define DEMAND(broken, ok) if :: !(ok) -> printf(broken); assert(false) :: else fi
#define CAN_ASK (!is_lost)

inline end_session()
{
    DEMAND("breaks R\n", false)
}

inline meet_leftover()
{
    DEMAND("breaks T\n", false)
}

/* ---- Connecting: reach.c ---- */

/* peer_found() */
inline look_up()
{
    lookups_left--;
    if
    :: is_lost || store_run != OURS -> skip /* EUNAVAILABLE: the record that is known stays */
    :: !is_lost && store_run == OURS && record == NONE -> /* ENOTFOUND */
        if
        :: !LIVE_SESSION -> end_session()
        :: else
        fi
    :: !is_lost && store_run == OURS && record != NONE && record_run != OURS -> skip /* of another run */
    :: else -> record_is_old = 0
    fi
}

/* A dials the address of B: B answers, or L does, or neither. */
inline dial()
{
    if
    :: is_up = 1; record_is_old = 0
    :: failures_left > 0 -> failures_left--; record_is_old = 1
    :: strays_left > 0 ->
        strays_left--;
        if
        :: RUN_IN_HELLO -> record_is_old = 1 /* it refuses */
        :: else -> meet_leftover()
        fi
    fi
}

/* ---- The store loses its keys: join.c, directory.c ---- */

#define NUMBERS 1
#define THE_RUN 2
#define THE_RECORD 3

inline put_numbers()
{
    if
    :: starts == NONE -> starts = (FROM_CLOCK -> highest : START_B)
    :: else
    fi
}

inline put_run()
{
    if
    :: store_run == NONE -> store_run = OURS
    :: else
    fi
}

/* One operation of directory_restore(), then of register_again(). */
inline restore_step(w)
{
    if
    :: restoring[w] == NUMBERS ->
        if
        :: STARTS_FIRST -> put_numbers()
        :: else -> put_run()
        fi;
        restoring[w] = THE_RUN
    :: restoring[w] == THE_RUN ->
        if
        :: STARTS_FIRST -> put_run()
        :: else -> put_numbers()
        fi;
        restoring[w] = (store_run == OURS -> THE_RECORD : NONE)
    :: restoring[w] == THE_RECORD ->
        if
        :: w == B && store_run == OURS && record == NONE -> record = START_B; record_run = OURS
        :: else
        fi;
        restoring[w] = NONE
    fi
}

/* check_own_record() of B */
#define B_IS_MISSING (store_run == OURS && record == NONE)

/* L finds the run of another group's life in its store, and leaves the store alone. */
inline leftover_checks()
{
    record = START_L;
    record_run = EARLIER
}

/* ---- Newcomers: enter_run(), count_start() ---- */

inline enter_run()
{
    newcomers_left--;
    joining = 1;
    if
    :: store_run == NONE -> store_run = NEWER
    :: else
    fi;
    newcomer_run = store_run
}

inline count_start()
{
    starts++;
    DEMAND("breaks D\n", newcomer_run != OURS || starts > highest);
    if
    :: newcomer_run == OURS -> highest = starts
    :: else
    fi;
    joining = 0;
    newcomer_run = NONE
}

proctype world()
{
end:
    do
    :: atomic { cuts_left > 0 && is_up -> cuts_left--; is_up = 0 }
    :: atomic { !is_up && (KNOWN_ADDRESS || !record_is_old) -> dial() }
    :: atomic { !is_up && record_is_old && lookups_left > 0 -> look_up() }
    :: atomic { /* L dials A, and says that it is a later start of B */
        strays_left > 0 ->
        strays_left--;
        if
        :: RUN_IN_HELLO
        :: else -> meet_leftover()
        fi
    }
    :: atomic { losses_left > 0 && !is_lost -> losses_left--; is_lost = 1 }
    :: atomic { is_lost -> is_lost = 0 }
    :: atomic { /* it comes back without its keys; see "Left out" for the rest of the condition */
        is_lost && !joining && restoring[A] == NONE && restoring[B] == NONE ->
        is_lost = 0;
        store_run = NONE;
        starts = NONE;
        record = NONE;
        record_run = NONE
    }
    :: atomic { CAN_ASK && store_run == NONE && restoring[A] == NONE -> restoring[A] = NUMBERS }
    :: atomic { CAN_ASK && store_run == NONE && restoring[B] == NONE -> restoring[B] = NUMBERS }
    :: atomic { CAN_ASK && restoring[A] != NONE -> restore_step(A) }
    :: atomic { CAN_ASK && restoring[B] != NONE -> restore_step(B) }
    :: atomic { is_lost && restoring[A] != NONE -> restoring[A] = NONE } /* the operation fails */
    :: atomic { is_lost && restoring[B] != NONE -> restoring[B] = NONE }
    :: atomic {
        CAN_ASK && REGISTERS_AGAIN && restoring[B] == NONE && B_IS_MISSING ->
        record = START_B;
        record_run = OURS
    }
    :: atomic { CAN_ASK && !CHECKS_RUN && store_run == OURS && record == NONE -> leftover_checks() }
    :: atomic { CAN_ASK && newcomers_left > 0 && !joining -> enter_run() }
    :: atomic { CAN_ASK && joining -> count_start() }
    od
}

proctype quiescence()
{
    timeout ->
    DEMAND("breaks Q\n", is_up);
    DEMAND("breaks Q\n", is_lost || store_run != OURS || (record == START_B && record_run == OURS))
}

init
{
    atomic {
        run world();
        run quiescence()
    }
}
