/* Inside the simulated network: sim_net.c runs events, sim_conn.c is the agents' transport,
 * sim_trace.c tells what happens. */
#ifndef TETHER_TESTS_RPC_SIM_INTERNAL_H
#define TETHER_TESTS_RPC_SIM_INTERNAL_H

#include "base/list.h"
#include "base/status.h"
#include "rpc/agent.h"
#include "rpc/agent/internal.h"
#include "rpc/transport/transport.h"
#include "rpc/wire/slice.h"
#include "tests/rpc/lib/sim_net.h"

#define TETHER_SIM_MAX_STARTS 64 /* of workers, in one simulation */

/* One start of a worker. */
struct tether_sim_worker {
    struct tether__transport base;
    struct tether_sim *sim;
    struct tether__transport_opts opts;
    tether_agent *agent; /* NULL once it is released */
    int index;
    bool started, stopped, paused, dead;
    bool timers_first; /* it was paused just now */
    bool parted[TETHER_SIM_MAX_STARTS];
    int64_t slow[TETHER_SIM_MAX_STARTS]; /* extra latency to each worker */
    struct tether_sim_worker *shares;    /* has the same address; NULL: none */
    /* For each worker: how many of its next dials surely reach this one. */
    int sure[TETHER_SIM_MAX_STARTS];
    struct tether__list conns;
};

/* One end of a connection. */
struct tether_sim_conn {
    struct tether__conn base;
    struct tether_sim_worker *worker;
    struct tether_sim_worker *with; /* NULL: no worker has that address */
    struct tether_sim_conn *other;  /* NULL once either end is closed */
    bool closing;                   /* nothing gets in any more */
    bool closed;                    /* its owner has been told */
    int64_t last_arrival;           /* at the other end */
    uint64_t dial;                  /* counts all that were ever dialled */
    bool dialled;                   /* by this end */
    bool has_heard;                 /* a message has come here */
    int hellos;                     /* that this end has said */
    int refs;
    struct tether__list node;
};

enum tether_sim_what {
    SIM_ACCEPT,
    SIM_OPENED,
    SIM_MESSAGE,
    SIM_SENT,
    SIM_CLOSED,
    SIM_TASK,
    SIM_FN
};

/* A message on its way; the receiver may keep it. */
struct tether_sim_buffer {
    struct tether__slice_owner owner;
    int refs;
    size_t len;
    uint8_t data[];
};

struct tether_sim_event {
    struct tether__list node;
    int64_t at;
    enum tether_sim_what what;
    struct tether_sim_worker *worker; /* where it happens; NULL: in the test itself */
    struct tether_sim_conn *conn;
    struct tether__task *task;
    void (*fn)(void *userdata);
    void *userdata;
    tether_status status;
    struct tether_sim_buffer *buffer;
    bool is_copy; /* it has come before */
    int hellos;   /* with a copy: that its sender had said then */
};

struct tether_sim {
    struct tether_test_clock clock;
    struct tether__agent_hooks hooks;
    uint64_t random;
    int64_t latency_min, latency_max;
    int duplicate_one_in;
    int64_t duplicate_late;
    uint64_t n_dials;
    struct tether_sim_faults faults;
    struct tether__list events; /* earliest first */
    struct tether_sim_worker *workers[TETHER_SIM_MAX_STARTS];
    int n_workers;
    void (*on_step)(void *userdata, tether_agent *agent);
    void *on_step_userdata;
    bool trusts_nobody;
    bool trace;
};

/* ---- sim_net.c ---- */
void *tether_sim_must(void *ptr); /* the test's own memory, not what is tested */
int64_t tether_sim_clock_ns(const struct tether_sim *sim);
struct tether_sim_event *tether_sim_schedule(struct tether_sim *sim,
                                             int64_t at,
                                             enum tether_sim_what what,
                                             struct tether_sim_worker *worker,
                                             struct tether_sim_conn *conn);
/* Runs the earliest thing that is due by `deadline`; else moves the clock there. */
bool tether_sim_step(struct tether_sim *sim, int64_t deadline);
/* Runs the earliest event of this worker, whenever it is due; false: there is none. */
bool tether_sim_run_own(struct tether_sim_worker *worker);

/* ---- sim_conn.c ---- */
tether_status tether_sim_make_transport(void *userdata,
                                        const struct tether__transport_opts *opts,
                                        struct tether__transport **ret_transport,
                                        tether_error *reterr);
void tether_sim_conn_unref(struct tether_sim_conn *conn);
void tether_sim_buffer_release(struct tether_sim_buffer *buffer);
void tether_sim_break(struct tether_sim_conn *conn,
                      tether_status here,
                      tether_status there,
                      bool lose);
void tether_sim_break_all(struct tether_sim_worker *worker);
/* Counts a message that arrived at `conn`. `is_heard`: its owner still reads from it. */
void tether_sim_count_arrival(struct tether_sim_conn *conn, bool is_heard);

/* ---- sim_trace.c ---- */
void tether_sim_trace_message(const struct tether_sim_conn *conn,
                              const struct tether_sim_buffer *buffer);

#endif
