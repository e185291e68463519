/* Node descriptions and their generator. */
#include "rendezvous/elastic/rules/node.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"

int tether__rdzv_node_compare(const struct tether__rdzv_node *a, const struct tether__rdzv_node *b)
{
    int order = strcmp(a->addr, b->addr);
    if (order == 0)
        order = (a->pid > b->pid) - (a->pid < b->pid);
    if (order == 0)
        order = (a->local_id > b->local_id) - (a->local_id < b->local_id);
    return order;
}

const char *tether__rdzv_node_format(const struct tether__rdzv_node *node,
                                     char text[TETHER__RDZV_NODE_TEXT])
{
    snprintf(text, TETHER__RDZV_NODE_TEXT, "%.*s_%" PRId64 "_%" PRId32, TETHER__RDZV_ADDR_MAX,
             node->addr, node->pid, node->local_id);
    return text;
}

tether_status tether__rdzv_full_host_name(char **ret_name, tether_error *reterr)
{
    char short_name[TETHER__RDZV_ADDR_MAX + 1] = "";
    if (gethostname(short_name, sizeof short_name - 1) != 0 || short_name[0] == '\0')
        return tether_error_set(reterr, TETHER_EIO,
                                "this host does not know its own name (%s): set local_addr",
                                strerror(errno));
    const char *name = short_name;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_CANONNAME};
    struct addrinfo *found = NULL;
    if (getaddrinfo(short_name, NULL, &hints, &found) == 0 && found->ai_canonname &&
        strlen(found->ai_canonname) <= TETHER__RDZV_ADDR_MAX)
        name = found->ai_canonname;
    char *copy = tether__strdup(name);
    if (found)
        freeaddrinfo(found);
    if (!copy)
        return tether_error_set(reterr, TETHER_ENOMEM, "out of memory for the name of this host");
    *ret_name = copy;
    return TETHER_OK;
}

tether_status tether__rdzv_node_generate(struct tether__rdzv_node_generator *generator,
                                         const char *local_addr,
                                         struct tether__rdzv_node *ret_node,
                                         tether_error *reterr)
{
    char *addr = NULL;
    if (local_addr) {
        if (local_addr[0] == '\0' || strlen(local_addr) > TETHER__RDZV_ADDR_MAX)
            return tether_error_set(reterr, TETHER_EINVAL,
                                    "local_addr must have 1 to %d characters, not %zu",
                                    TETHER__RDZV_ADDR_MAX, strlen(local_addr));
        addr = tether__strdup(local_addr);
        if (!addr)
            return tether_error_set(reterr, TETHER_ENOMEM,
                                    "out of memory for the address of a node");
    } else {
        tether_status st = tether__rdzv_full_host_name(&addr, reterr);
        if (st != TETHER_OK)
            return st;
    }
    ret_node->addr = addr;
    ret_node->pid = getpid();
    ret_node->local_id = atomic_fetch_add(&generator->next_local_id, 1);
    return TETHER_OK;
}
