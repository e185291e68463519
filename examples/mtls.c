/* Mutual TLS: workers accept only peers with a certificate of their CA, and a visitor has none.
 *
 *     mtls_certs.sh folder
 *     tether-run --nproc-per-node=2 -- mtls folder
 *
 * mtls_certs.sh makes the certificates with openssl: ca.pem, and for each worker NAME.pem and
 * NAME.key signed by that CA: worker0, worker1 for localhost and 127.0.0.1, and visitor, signed by
 * another CA.
 *
 * Look at the three TLS options: nothing else is needed. The name of a worker must be in its
 * certificate, so worker1 cannot claim to be worker0. The call of the visitor fails with a reason.
 */
#include <stdio.h>
#include <stdlib.h>

#include "rref/rref.h"

struct files {
    char ca[512], cert[512], key[512];
};

static struct files files_of(const char *folder, const char *name)
{
    struct files files;
    snprintf(files.ca, sizeof files.ca, "%s/ca.pem", folder);
    snprintf(files.cert, sizeof files.cert, "%s/%s.pem", folder, name);
    snprintf(files.key, sizeof files.key, "%s/%s.key", folder, name);
    return files;
}

static tether_status secret(void *ud,
                            const tether_value *arg,
                            tether_value **ret,
                            tether_error *err)
{
    (void)ud, (void)arg;
    return tether_value_printf(ret, err, "the answer is 42, %s", tether_caller_name());
}

/* Tries to join the group with a certificate of another CA, and to call "secret". */
static tether_status visit(tether_agent *host, const char *folder, tether_error *err)
{
    struct files files = files_of(folder, "visitor");
    tether_agent *visitor = NULL;
    tether_status st =
        tether_agent_new(TETHER_AGENT_OPTS(.name = "visitor", .store = tether_agent_store(host),
                                           .tls_ca_file = files.ca, .tls_cert_file = files.cert,
                                           .tls_key_file = files.key),
                         &visitor, err);
    if (st == TETHER_OK)
        st = tether_agent_start(visitor, err);
    if (st == TETHER_OK) {
        tether_error why = {0};
        st = tether_rpc_sync(visitor, "worker1", "secret", NULL, 3000, NULL, &why);
        printf("the visitor: %s\n", st ? why.message : "got in");
        st = st ? TETHER_OK : tether_error_set(err, TETHER_EINTERNAL, "anybody can come in");
    }
    tether_agent_release(visitor);
    return st;
}

static tether_status ask(tether_agent *agent, const char *folder, tether_error *err)
{
    tether_value *answer = NULL;
    tether_status st =
        tether_rpc_sync(agent, "worker1", "secret", NULL, TETHER_DEFAULT_MS, &answer, err);
    if (st == TETHER_OK)
        printf("worker1: %s\n", tether_value_str(answer));
    tether_value_release(answer);
    return st == TETHER_OK ? visit(agent, folder, err) : st;
}

int main(int argc, char **argv)
{
    tether_error err = {0};
    tether_agent *agent = NULL;
    const char *rank = getenv("RANK");
    char name[32];
    if (argc != 2 || !rank) {
        fprintf(stderr, "usage: tether-run --nproc-per-node=2 -- mtls folder\n");
        return 2;
    }
    snprintf(name, sizeof name, "worker%s", rank);
    struct files files = files_of(argv[1], name);
    if (tether_agent_new(
            TETHER_AGENT_OPTS(.name = name, .rendezvous = "env://", .tls_ca_file = files.ca,
                              .tls_cert_file = files.cert, .tls_key_file = files.key),
            &agent, &err) ||
        tether_agent_register(agent, "secret", secret, NULL, &err) ||
        tether_agent_start(agent, &err) ||
        (tether_agent_rank(agent) == 0 && ask(agent, argv[1], &err)) ||
        tether_agent_shutdown(agent, true, &err))
        fprintf(stderr, "%s: %s\n", tether_status_name(err.code), err.message);
    tether_agent_release(agent);
    return err.code != TETHER_OK;
}
