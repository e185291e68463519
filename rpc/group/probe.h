/* Finds out whether a worker that the directory names is alive, so that no second process takes the
 * name of a live one (dynamic groups, see `take_over` in agent.h).
 *
 * The probe dials the address in the worker's record, as an observer does. A live worker answers
 * the handshake as the start in the record. The probe ends the handshake after that answer, so it
 * has no effect on the worker.
 *
 * Verdicts:
 *
 * - ALIVE: the start of the record answers.
 * - GONE: no process listens at the address. Or another start, another worker or a worker of
 *   another run answers. Or the group has a token or certificates, and the other end cannot prove
 *   its identity with them: then any process may have taken the address.
 * - TETHER_EAUTH, TETHER_EPERM: the worker proves who it is, but has another token or refuses this
 *   start's certificate: this start was given the wrong one.
 * - SILENT: no answer, or the connection ends without one: the worker is stopped, overloaded,
 *   unreachable, or about to leave.
 */
#ifndef TETHER_RPC_GROUP_PROBE_H
#define TETHER_RPC_GROUP_PROBE_H

#include "rpc/agent.h"
#include "rpc/group/directory.h"
#include "rpc/handshake/pairing.h"

enum tether__probe_verdict { TETHER__PROBE_ALIVE, TETHER__PROBE_GONE, TETHER__PROBE_SILENT };

/* Probes the worker once. Blocks, until `deadline` at the latest. Other threads must poll the
 * agent's transports. */
tether_status tether__agent_probe(tether_agent *agent,
                                  const struct tether__worker_record *record,
                                  int64_t deadline,
                                  enum tether__probe_verdict *ret_verdict,
                                  tether_error *reterr);

/* Decides whether this start may replace the worker of `record`, which has the same name. Blocks: a
 * worker that is SILENT is asked again until it answers, its record changes, or it has been silent
 * for a lease; then it may be replaced. TETHER_EEXIST: the worker is alive. TETHER_ETIMEOUT:
 * `deadline` has passed before a verdict. TETHER_EAUTH, TETHER_EPERM: see the verdicts. */
tether_status tether__agent_may_replace(tether_agent *agent,
                                        const struct tether__worker_record *record,
                                        int64_t deadline,
                                        tether_error *reterr);

/* Draws a name for an observer that belongs to `who`. */
void tether__observer_name(const char *who, char ret_name[TETHER__MAX_NAME + 1]);

#endif
