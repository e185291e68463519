/* A store server that behaves like one version of PyTorch's: it knows the operations of that
 * version and closes the connection on any other. It follows the description of the protocol and
 * shares no code with the store under test. Values are in a list, so use few keys.
 *
 *     struct torch_server *torch = torch_server_start(&torch_2_4);
 *     ... torch_server_port(torch) ...
 *     torch_server_stop(torch);
 */
#ifndef TETHER_TESTS_RENDEZVOUS_STORE_TCP_TORCH_SERVER_H
#define TETHER_TESTS_RENDEZVOUS_STORE_TCP_TORCH_SERVER_H

#include <stdbool.h>

struct torch_version {
    const char *name;
    bool has_validate; /* dialect V, otherwise L1 */
    int last_op;       /* the highest opcode that it knows */
    bool is_libuv;     /* GET of a missing key is answered by an empty value, not by closing */
};

extern const struct torch_version torch_2_1, torch_2_4, torch_2_8, torch_2_8_legacy, torch_2_11;

struct torch_server;

struct torch_server *torch_server_start(const struct torch_version *version);
int torch_server_port(const struct torch_server *torch);
/* Returns how many it has received so far. */
int torch_server_unknown_ops(struct torch_server *torch);
void torch_server_stop(struct torch_server *torch); /* clients may still be connected */

#endif
