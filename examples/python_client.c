/* A worker that programs in other languages can call with any gRPC client, such as python_client.py
 * beside this file.
 *
 *     python_client serves on 127.0.0.1 and prints the port
 *     python3 python_client.py 127.0.0.1:PORT
 *
 * Look at main(): this worker is like any other. Every registered function can be called as
 * tether.Worker/Call (protos/rpc.proto), with bytes in and bytes out; a status that it returns
 * arrives as a gRPC status. References cannot be passed to such clients.
 */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "rref/rref.h"

/* "count_words": returns the number of words in the text. */
static tether_status count_words(void *ud,
                                 const tether_value *arg,
                                 tether_value **ret,
                                 tether_error *err)
{
    (void)ud;
    int words = 0;
    for (const char *c = tether_value_str(arg); *c; c++)
        words += !isspace((unsigned char)*c) && (c[1] == '\0' || isspace((unsigned char)c[1]));
    if (words == 0)
        return tether_error_set(err, TETHER_EINVAL, "send a text with words in it");
    return tether_value_printf(ret, err, "%d", words);
}

int main(void)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    tether_store *store = NULL;
    sigset_t stop;
    int signal;

    setvbuf(stdout, NULL, _IOLBF, 0);
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    /* Before threads start, because they inherit the mask. */
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    /* A store of its own: there are no other workers. */
    if (tether_store_hash_new(&store, &err) == TETHER_OK &&
        tether_agent_new(TETHER_AGENT_OPTS(.name = "counter", .store = store), &agent, &err) ==
            TETHER_OK &&
        tether_agent_register(agent, "count_words", count_words, NULL, &err) == TETHER_OK &&
        tether_agent_start(agent, &err) == TETHER_OK) {
        printf("serving on %s\n", tether_agent_address(agent));
        sigwait(&stop, &signal);
        tether_agent_shutdown(agent, true, &err);
    }
    tether_agent_release(agent);
    tether_store_release(store);
    if (err.code)
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    return err.code != TETHER_OK;
}
