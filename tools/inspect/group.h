/* A running group as an observer sees it: its workers, and the references that each reports.
 *
 * Happy path: inspect_find() lists the groups of a store; inspect_open() joins one as an observer,
 * which the barriers of a static group do not count; inspect_look() asks all workers at once.
 * Failure modes: a worker that does not answer in time has an error in place of a dump; the others
 * have their dumps.
 */
#ifndef TETHER_TOOLS_INSPECT_GROUP_H
#define TETHER_TOOLS_INSPECT_GROUP_H

#include "protos/inspect.pb-c.h"
#include "rpc/agent.h"

struct inspect_worker {
    /* the worker as the directory has it; its state is read again after the call */
    tether_worker info;
    Tether__Dump *dump; /* the worker's dump; NULL: it did not answer */
    tether_error why;
};

struct inspect_group {
    char *path; /* prefix of the group's keys: "prefix/name", or "name" */
    char *name; /* name of the group; points into `path` */
    tether_agent *agent;
    struct inspect_worker *workers; /* sorted by id, without observers */
    size_t n_workers;
};

/* Gives the paths of all groups in `store`, sorted. The caller frees each path and the array by
 * free(). */
tether_status inspect_find(tether_store *store,
                           int timeout_ms,
                           char ***ret_paths,
                           size_t *ret_n,
                           tether_error *reterr);

/* Joins the group at `path` as an observer; `opts` has the secrets and the timeouts. */
tether_status inspect_open(struct inspect_group *group,
                           tether_store *store,
                           const char *path,
                           const struct tether_agent_opts *opts,
                           tether_error *reterr);

/* Reads the list of workers, and requests a dump from each. */
tether_status inspect_look(struct inspect_group *group, int timeout_ms, tether_error *reterr);

/* Leaves the group and frees its data. Accepts a group that could not be opened. */
void inspect_close(struct inspect_group *group);

/* Returns the owner's entry for object `id` of worker `owner`; NULL when there is none. */
const Tether__DumpOwner *inspect_object(const struct inspect_group *group,
                                        const char *owner,
                                        const char *id);

#endif
