/* The reference protocol, to be checked exhaustively in small worlds by spin.
 *
 * Worker 0 is the owner, the others are users. References are made by remote() or by the owner,
 * passed on in calls and replies, used and released, in any order; sessions are fenced at any time;
 * workers crash and start again. The names are those of rref/ and rpc/: on_fork_request() here is
 * on_fork_request() there. docs/rref-model.md lists the parts that are left out, and the results.
 *
 * Each d_step is what the code does under one lock, or the handling of one message. In a world with
 * THREADS, taking a message, handling it, ending a session and reporting that to rref/ are separate
 * steps, as they are for the threads of an agent.
 *
 * The checks, and their places:
 *   S1  an object is not destroyed while a worker whose session with the owner stands has a
 *       confirmed reference                                                       destroy()
 *   J   confirmed, and the session stands: the owner has the fork                 check()
 *   S2  a reference in flight is refused only if its sender died or a session among sender,
 *       receiver and owner ended                                                  refuse()
 *   S3  a message about one object finds no other                                 owner_find()
 *   S4  a fork that the owner has forgotten does not come back                    fork_add()
 *   U   a use finds its object                                                    find_used()
 *   P   no request waits for a destroyed object                        may_come(), check()
 *   Q   when nothing can happen any more, all tables are empty                    quiescence()
 * That every run comes to such an end (L1, L2) is checked by a run with -DNP: there is no cycle.
 *
 * Worlds and mutants (a rule left out) are chosen by the environment when the verifier runs, so that
 * it is compiled once for all: model_test.sh has them. USERS, NOBJECT, NFORK and LANE are room, and
 * chosen by -D.
 */
#ifndef USERS
#define USERS 2 /* up to 3 */
#endif
#ifndef NOBJECT
#define NOBJECT 2
#endif
#ifndef NFORK
#define NFORK 4
#endif
#ifndef LANE
#define LANE 6 /* frames; send_…() asserts that it is enough */
#endif

c_decl {
\#include <stdlib.h>
    static unsigned char bound(const char *name)
    {
        const char *text = getenv(name);
        return text ? (unsigned char)atoi(text) : 0;
    }
}

/* How many events of each kind may still happen in this world. */
byte objects_left; /* that users make by remote() */
byte large_left;   /* that they make by a remote() whose argument goes in pieces */
byte own_left;     /* that the owner makes */
byte forks_left;   /* the first of each object included */
byte uses_left;    /* to_here(), or going back to the owner in a call */
byte giveups_left; /* remote() and fork-requests that time out at their caller */
byte withdraws_left; /* remote() that fail before their call has left: it is never sent */
byte fences_left;  /* of workers that are alive */
byte crashes_left, restarts_left;
byte duplicates_left; /* where there is no lane */
hidden byte threads;
hidden byte late; /* worker 2 starts only after worker 1 has ended, under another name, with its rank */
hidden byte mutant; /* 0: none */

#define M_NO_LANE 1                 /* frames come twice and in any order */
#define M_LARGE_NOT_ANNOUNCED 2     /* calls with large arguments lose their place, unannounced */
#define M_OLD_FRAMES 3              /* frames of an ended session are taken */
#define M_NO_PIN 4                  /* the sender does not hold on until the child is accepted */
#define M_PIN_TIMES_OUT 5           /* it does, for some time */
#define M_REPLY_WITHOUT_PIN 6       /* not when the reference goes to its owner in a reply */
#define M_ACCEPT_BEFORE_ANSWER 7    /* the receiver accepts before the owner has answered */
#define M_RUN_BEFORE_ANSWER 8       /* the function runs before the owner has answered */
#define M_WAITING_OUTLIVE_DELETE 9   /* a caller that gave up on a waiting fork-request gets its fork later */
#define M_NO_BREAK 10               /* references outlive the fence at their holder */
#define M_FORKS_OUTLIVE_FENCE 11    /* forks outlive it at the owner */
#define M_PINS_OUTLIVE_FENCE 12     /* pending children outlive it at the worker that passed them on */
#define M_WAITING_OUTLIVE_FENCE 13   /* waiting requests outlive it */
#define M_MINTER_HOLDS 14           /* the worker that passed a fork on counts as its holder */
#define M_REGISTER_WHEN_MADE 15     /* objects are not entered when the call arrives: a delete overtakes the create */
#define M_NO_WATERMARK 16           /* requests for any missing object wait */
#define M_WATERMARK_OF_ALL_STARTS 17 /* a creator's watermark outlives its restart */
#define M_WAITING_FOREVER 18         /* a waiting fork-request has no deadline */
#define M_ID_WITHOUT_START 19       /* ids are creator and counter */
#define M_ANY_OWNER_START 20        /* a request for a former start of the owner is taken */
#define M_OWN_NOT_EXPECTED 21        /* a reference that comes back before its object is refused */
#define M_REFUSED_CALL_LEFT 22      /* the references of a call that is refused are not settled */
#define M_EPOCH_READ_LATE 23        /* the handler asks which session a message came in */
#define M_ASK_THOUGH_BROKEN 24      /* a fork-request is sent for a reference that a fence has broken */
#define M_WAITING_ENDED_LATE 25            /* waiting requests go after the forks, under another lock */
#define M_ANNOUNCED_IS_MADE 26      /* an announced object is made although its creator has released it */
#define M_PASSED_NOT_EXAMINED 27    /* waiting requests are not looked at when the watermark rises */
#define M_STARTS_OF_NAME 28         /* each name counts its own starts: ids are rank, start, counter */
#define IS(m) (mutant == m)

#define O 0 /* the owner */
#define N (USERS + 1)
#define LINKS (N * USERS)
#define LINK(a, b) ((a) * USERS + (b) - ((b) > (a))) /* the state of `a` about `b` */
#define NONE 15

/* ---- The state of a worker about another: session and lanes ---- */

bit alive[N];
byte start[N];      /* of this worker: how often it has been started again */
byte incarnation[N]; /* the number that this start has drawn */
byte n_incarnations; /* the store counts the starts of all workers */
byte epoch[LINKS];  /* of the session; the greater of both ends' wins */
bit met[LINKS];     /* the other has been heard in this session */
byte known[LINKS];  /* the start of the other that the session is with */
bit fresh[LINKS];   /* we were restarted and have not said hello to it */
bit suspect[LINKS]; /* it is dead and has a session with us: its lease will run out */
bit unreported[LINKS];  /* the session has ended, and that has not been reported to rref/ (THREADS) */

/* A worker sends its requests on its own stream, and its replies on the stream of the other. */
chan request[LINKS] = [LANE] of { byte, byte };
chan reply[LINKS] = [LANE] of { byte, byte };

#define REMOTE 1        /* request: make the object; the fork is its first */
#define ANNOUNCE 2      /* request: LARGE_REMOTE follows */
#define LARGE_REMOTE 3  /* request: as REMOTE, but later messages may overtake it */
#define CALL 4          /* request: carries the fork */
#define CALL_OWN 5      /* request: carries a reference back to its owner, without a fork */
#define FORK_REQUEST 6  /* request */
#define CHILD_ACCEPT 7  /* request */
#define USER_DELETE 8   /* request */
#define FETCH 9         /* request */
#define RESULT 10       /* reply to some call: carries the fork back to the owner */
#define OK 11           /* reply to REMOTE, LARGE_REMOTE, FORK_REQUEST */
#define EGONE 12        /* reply to FORK_REQUEST */
#define ETIMEOUT 13     /* reply to FORK_REQUEST */
#define EFENCED 14      /* never sent: the sender of the request is gone */

/* The message that a worker's thread has taken and not handled (THREADS). */
byte hand_kind[N], hand_fork[N], hand_from[N];
bit hand_old[N], hand_over[N]; /* its session has ended since; and been settled */

/* ---- Objects, at the owner ---- */

byte n_objects;
byte made_by[NOBJECT], counter[NOBJECT];       /* the id: the creator's incarnation, and a counter */
byte creator[NOBJECT], creator_start[NOBJECT]; /* which worker that was */
byte owner_start[NOBJECT]; /* of the owner that the creator knew */
bit in_table[NOBJECT];     /* of owners */
bit making[NOBJECT];       /* its function has not returned */
bit maker_left[NOBJECT];   /* the session that it is made for has ended: no reply */
bit expected[NOBJECT];     /* the call that makes it has not arrived: only who has it counts … */
bit expected_old[NOBJECT]; /* … and never will */
byte handles[NOBJECT];     /* of the owner's own program */
byte watermark[N * 2];     /* by the creator's incarnation */
byte next_counter[N];

#define COMING 1
#define LIVE 2
#define DEAD 3
#define NEVER 4 /* the call that makes it was not sent */
byte life[NOBJECT]; /* its actual state; only for the checks */

/* ---- Forks: at most one entry at each of owner, holder and minter (the worker that passed it on)
 * ---- */

byte n_forks;
byte object[NFORK];
byte minter[NFORK]; /* the worker that passed it on; of a first fork, the creator of the object */
byte holder[NFORK]; /* the worker that it is for */
byte parent[NFORK]; /* the minter's own reference; NONE: it needs no pin */
/* at the owner; `old` here and below: of a session that has ended */
bit forked[NFORK], fork_old[NFORK];
bit waiting[NFORK], waiting_old[NFORK];
/* at the holder */
#define PENDING 1
#define CONFIRMED 2
#define BROKEN 3
#define COLLECTED 4
byte state[NFORK]; /* 0: on its way */
bit handle[NFORK], known_to_owner[NFORK], ref_old[NFORK];
bit asking[NFORK]; /* its fork-request has yet to be queued (THREADS) */
/* at the minter: in pending children */
bit pinned[NFORK], pin_old[NFORK];
/* only for the checks */
bit excused[NFORK];   /* S2: it may be refused, or is no longer on its way */
byte fork_was[NFORK]; /* at the owner: 0, LIVE, DEAD */

hidden byte i, j, k, m, f, g, x, kind, found;
hidden byte old;  /* the session of the message at hand has ended since it was taken … */
hidden byte over; /* … and been settled, so that nothing more is entered in its name */

/* Asserts a check. The trace that pan -r prints names the broken one. */
#define DEMAND(broken, ok) if :: !(ok) -> printf(broken); assert(false) :: else fi

#define IS_FIRST(r) (minter[r] == holder[r])
#define UNDECIDED(r) (state[r] == 0 || state[r] == PENDING)
#define INVOLVES(r, a) (a == O || a == minter[r] || a == holder[r])

/* Both have heard of each other's present start. */
#define ACQUAINTED(a, b)                                                                     \
    (!fresh[LINK(a, b)] && !fresh[LINK(b, a)] && known[LINK(a, b)] == start[b] &&            \
     known[LINK(b, a)] == start[a])
/* The session stands. */
#define SAME(a, b)                                                                           \
    ((a) == (b) || (alive[a] && alive[b] && ACQUAINTED(a, b) &&                              \
                    epoch[LINK(a, b)] == epoch[LINK(b, a)]))
/* And both have heard so. */
#define AGREED(a, b) ((a) == (b) || (SAME(a, b) && met[LINK(a, b)] && met[LINK(b, a)]))
/* Something of `a` now counts on `b`. */
#define COUNTS_ON(a, b) suspect[LINK(a, b)] = suspect[LINK(a, b)] || !alive[b]

#include "lane.pml"
#include "owner.pml"
#include "user.pml"
#include "fence.pml"
#include "link.pml"
#include "program.pml"

/* ---- The end ------------------------------------------------------------------------------- */

proctype quiescence()
{
    timeout ->
    d_step {
        for (i : 0 .. n_forks - 1) {
            DEMAND("breaks Q\n",
                   !forked[i] && !waiting[i] && !pinned[i] && state[i] == COLLECTED)
        }
        for (i : 0 .. n_objects - 1) {
            DEMAND("breaks Q\n",
                   !in_table[i] && !making[i] && handles[i] == 0 && life[i] != LIVE)
        }
        for (i : 0 .. LINKS - 1) {
            DEMAND("breaks Q\n", len(request[i]) == 0 && len(reply[i]) == 0)
        }
        i = 0
    }
}

init
{
    atomic {
        c_code {
            now.objects_left = bound("OBJECTS");
            now.large_left = bound("LARGE");
            now.own_left = bound("OWN");
            now.forks_left = bound("FORKS");
            now.uses_left = bound("USES");
            now.giveups_left = bound("GIVEUPS");
            now.withdraws_left = bound("WITHDRAWS");
            now.fences_left = bound("FENCES");
            now.crashes_left = bound("CRASHES");
            now.restarts_left = bound("RESTARTS");
            now.duplicates_left = bound("DUPLICATES");
            threads = bound("THREADS");
            late = bound("LATE");
            mutant = bound("MUTANT");
        };
        assert(objects_left + large_left + own_left <= NOBJECT && forks_left <= NFORK);
        for (i : 0 .. N - 1) {
            alive[i] = !(late && i == 2);
            incarnation[i] = i
        }
        n_incarnations = N;
        assert(N + restarts_left <= N * 2);
        for (i : 0 .. LINKS - 1) { met[i] = 1 }
        for (i : 0 .. N - 1) {
            run worker(i);
            for (j : 0 .. N - 1) {
                if
                :: i != j -> run link(i, j)
                :: else
                fi
            }
        }
        for (i : 0 .. NOBJECT - 1) { run owner(i) }
        for (i : 0 .. NFORK - 1) { run reference(i) }
        run quiescence()
    }
}
