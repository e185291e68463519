/* A running group as an observer sees it: who is in it, and what each says of its references.
 *
 * Happy path: inspect_find() lists the groups that a store knows; inspect_open() comes to one as a
 * worker of its own (which a static group's barriers do not count); inspect_look() asks everybody
 * at once. Failure modes: a worker that does not answer in time has a reason in place of a dump;
 * the others are shown all the same.
 */
#ifndef TETHER_TOOLS_INSPECT_GROUP_H
#define TETHER_TOOLS_INSPECT_GROUP_H

#include "protos/inspect.pb-c.h"
#include "rpc/agent.h"

struct inspect_worker {
    tether_worker info; /* with its state as of after the question */
    Tether__Dump *dump; /* NULL: it did not answer */
    tether_error why;
};

struct inspect_group {
    char *path; /* where its keys are: "prefix/name", or "name" */
    char *name; /* points into path */
    tether_agent *agent;
    struct inspect_worker *workers; /* by id; ourselves and other observers not among them */
    size_t n_workers;
};

/* The paths of all groups in `store`, sorted; free() each, and the list. */
tether_status inspect_find(tether_store *store,
                           int timeout_ms,
                           char ***ret_paths,
                           size_t *ret_n,
                           tether_error *reterr);

/* Comes to the group at `path`; `opts` has the secrets, and time-outs. */
tether_status inspect_open(struct inspect_group *group,
                           tether_store *store,
                           const char *path,
                           const struct tether_agent_opts *opts,
                           tether_error *reterr);

/* Reads the present workers and their answers. */
tether_status inspect_look(struct inspect_group *group, int timeout_ms, tether_error *reterr);

/* Leaves. Works on a group that could not be opened. */
void inspect_close(struct inspect_group *group);

/* The owner's entry for object `id` of worker `owner`; NULL: there is none. */
const Tether__DumpOwner *inspect_object(const struct inspect_group *group,
                                        const char *owner,
                                        const char *id);

#endif
