/* The handshake (rpc/handshake/handshake.h) between two workers that have the token, and an attacker who does
 * not, but sees every message, may drop, repeat and reflect them, and may open streams under any name.
 *
 * A MAC is a record of what it was computed over: only workers with the token can make one, and the
 * attacker can repeat one that was sent. The attacker remembers the MACs of every stream; a nonce is the
 * number of the end that drew it.
 *
 * Ends 0 to ENDS-1: each plays one stream, as dialler or as listener, of worker `who[e]`, and takes
 * the other for `other[e]`.
 *
 * The property that must hold: when a dialler is done, some end of the worker that it dialled has listened, with
 * the same two names, starts and nonces; when a listener is done, some end of the worker that
 * it heard from has dialled so. And no two ends are done with the same one. No worker believes a start of the
 * other that is higher than its latest.
 *
 * Each end has the start number of its worker, and is told one of the other end's. Worker 1 has been
 * restarted: end 2 is of its first start, end 3 of its second. An end believes a higher start of the
 * other worker than it knew only when it is done; the attacker names start 3, which no worker has. That a start
 * belongs to one worker is not in it: rpc/peer/admission/starts.h sees to that after the handshake, and
 * tests/rref/hostile/start_test.c checks it.
 *
 * With TWO_RUNS, worker 1 is one of an earlier run, with the token: then no end is ever done, since
 * no end of the same run is there.
 *
 * Mutants, each of which must break that: ROLE, NONCE_L, NONCE_D, NAMES, STARTS or RUN is 0, the last
 * with TWO_RUNS: then the MACs lack that part. PROOF is 0: a later start is believed as soon as it is told.
 */
#define ENDS 4
#define NONE 15

#ifndef ROLE
#define ROLE 1
#endif
#ifndef NONCE_L
#define NONCE_L 1
#endif
#ifndef NONCE_D
#define NONCE_D 1
#endif
#ifndef NAMES
#define NAMES 1
#endif
#ifndef STARTS
#define STARTS 1
#endif
#ifndef PROOF
#define PROOF 1
#endif
#ifndef RUN
#define RUN 1
#endif
#ifndef TWO_RUNS
#define TWO_RUNS 0
#endif

/* Per end. Even ends dial, odd ones listen. Ends 0 and 1 are of worker 0, ends 2 and 3 of worker 1.
 */
#define DIALS(e) ((e) % 2 == 0)
#define WHO(e) ((e) / 2)
#define RUN_OF(e) (TWO_RUNS * WHO(e))
#define START_OF(e) ((e) == 3 -> 2 : 1)
#define LATEST_OF(w) (1 + (w))
byte other[ENDS];      /* the worker that it takes the other end for */
byte peer_nonce[ENDS]; /* that it was sent */
byte peer_start[ENDS]; /* that it was told */
byte known[2];         /* the latest start of the other worker that each worker believes */
bool sent[ENDS];       /* its MAC is out, and may be repeated */
bool done[ENDS];       /* it has taken the other end for proved */
bool began[ENDS];

/* The parts of the MAC that end e sends, or that end e expects of the other end. */
#define M_ROLE(dialler) (ROLE * (dialler))
#define M_D(e) (NAMES * (DIALS(e) -> WHO(e) : other[e]))
#define M_L(e) (NAMES * (DIALS(e) -> other[e] : WHO(e)))
#define M_ND(e) (NONCE_D * (DIALS(e) -> e : peer_nonce[e]))
#define M_NL(e) (NONCE_L * (DIALS(e) -> peer_nonce[e] : e))
#define M_SD(e) (STARTS * (DIALS(e) -> START_OF(e) : peer_start[e]))
#define M_SL(e) (STARTS * (DIALS(e) -> peer_start[e] : START_OF(e)))
#define M_RUN(e) (RUN * RUN_OF(e))

/* Whether the MAC that end s has sent is the one that end e expects. */
#define FITS(e, s)                                                                     \
    (M_ROLE(DIALS(s)) == M_ROLE(!DIALS(e)) && M_D(s) == M_D(e) && M_L(s) == M_L(e) && \
     M_SD(s) == M_SD(e) && M_SL(s) == M_SL(e) && M_ND(s) == M_ND(e) && M_NL(s) == M_NL(e) &&         \
     M_RUN(s) == M_RUN(e))

/* End s is really the other end of e. */
#define MATCHES(e, s)                                                        \
    (DIALS(s) != DIALS(e) && WHO(s) == other[e] && other[s] == WHO(e) && began[s] && \
     peer_start[s] == START_OF(e) && peer_start[e] == START_OF(s) && peer_nonce[s] == e &&           \
     peer_nonce[e] == s && RUN_OF(s) == RUN_OF(e))

#define NOBODY_TWICE(e, s, t) (!(done[s] && done[t] && (s) != (t) && MATCHES(s, e) && MATCHES(t, e)))

inline must_be_real(e)
{
    assert((MATCHES(e, 0) || MATCHES(e, 1) || MATCHES(e, 2) || MATCHES(e, 3)))
}

inline believe(e)
{
    if
    :: peer_start[e] > known[WHO(e)] -> known[WHO(e)] = peer_start[e]
    :: else
    fi;
    assert(known[WHO(e)] <= LATEST_OF(other[e]))
}

/* An end hears which start the other one is. */
inline hear(e, start)
{
    peer_start[e] = start;
    if
    :: !PROOF -> believe(e)
    :: else
    fi
}

/* The attacker decides everything that an end is sent: the name and start that a Hello1 or Hello2
 * claims, both nonces, and which of the MACs that were sent it repeats. Without it the messages of the other end are
 * among these choices. */
proctype world()
{
    byte e, s, n, w, start;
    do
    :: atomic {
           select (e : 0..3); select (w : 0..1); select (n : 0..3); select (start : 1..3);
           if
           :: DIALS(e) && !began[e] && w != WHO(e) -> /* dials; Hello1 is out */
               began[e] = true; other[e] = w
           :: DIALS(e) && began[e] && peer_nonce[e] == NONE && n != e -> /* a Hello2 comes */
               peer_nonce[e] = n; hear(e, start)
           :: !DIALS(e) && !began[e] && w != WHO(e) && n != e -> /* a Hello1 comes, Hello2 goes */
               began[e] = true; other[e] = w; peer_nonce[e] = n; sent[e] = true; hear(e, start)
           :: else
           fi;
           e = 0; s = 0; n = 0; w = 0; start = 0 /* no state differs in these alone */
       }
    :: atomic {
           select (e : 0..3); select (s : 0..3);
           if
           :: began[e] && !done[e] && peer_nonce[e] != NONE && sent[s] && FITS(e, s) ->
               done[e] = true;
               if
               :: DIALS(e) -> sent[e] = true /* Hello3 */
               :: else
               fi;
               must_be_real(e);
               believe(e);
               assert(NOBODY_TWICE(0, 1, 3) && NOBODY_TWICE(1, 0, 2) && NOBODY_TWICE(2, 1, 3) &&
                      NOBODY_TWICE(3, 0, 2))
           :: else
           fi;
           e = 0; s = 0; n = 0; w = 0; start = 0 /* no state differs in these alone */
       }
    od
}

init {
    byte i;
    for (i : 0 .. 3) {
        peer_nonce[i] = NONE
    }
    run world()
}
