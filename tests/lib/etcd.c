/* Starts, kills and restarts an etcd; see the header. */
#include "tests/lib/etcd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/child.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"

#define MAX_FILES 8
#define MAX_MEMBERS 3

struct member {
    struct tether_test_child *child; /* the process of the member; NULL while it does not run */
    int port, peer_port;
};

struct tether_test_etcd {
    struct tether_test_etcd_opts opts;
    char dir[200];
    char address[16];
    struct member members[MAX_MEMBERS];
    char endpoint[MAX_MEMBERS * 24];
    char files[MAX_FILES][256]; /* paths that tether_test_etcd_file() has returned */
};

/* Runs a command and waits for its end; fails the test when the command fails. */
static void run(const char *const *argv)
{
    struct tether_test_child *child = tether_test_child_start(argv);
    bool ended = tether_test_child_wait(child, TETHER_TEST_LIMIT_MS);
    if (!ended || !tether_test_child_ok(child))
        fail_msg("%s: %s: %s", argv[0], tether_test_child_result(child),
                 tether_test_child_output(child));
    tether_test_child_free(child);
}

/* ---- Certificates --------------------------------------------------------------------------- */

const char *tether_test_etcd_file(struct tether_test_etcd *etcd, const char *name)
{
    size_t skip = strlen(etcd->dir) + 1;
    for (int i = 0;; i++) {
        assert_true(i < MAX_FILES);
        char *path = etcd->files[i];
        if (!*path)
            snprintf(path, sizeof etcd->files[0], "%s/%s", etcd->dir, name);
        if (strcmp(path + skip, name) == 0)
            return path;
    }
}

#define EC_KEY "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"

static void make_authority(struct tether_test_etcd *etcd, const char *name)
{
    char key[256], cert[256], subject[64];
    snprintf(key, sizeof key, "%s/%s.key", etcd->dir, name);
    snprintf(cert, sizeof cert, "%s/%s.crt", etcd->dir, name);
    snprintf(subject, sizeof subject, "/CN=tether test %s", name);
    run((const char *[]){"openssl", "req", "-x509", EC_KEY, "-keyout", key, "-out", cert, "-subj",
                         subject, "-days", "2", NULL});
}

static void make_certificate(struct tether_test_etcd *etcd,
                             const char *name,
                             const char *subject_alt_name)
{
    char key[256], request[256], cert[256], extensions[256], subject[64];
    snprintf(key, sizeof key, "%s/%s.key", etcd->dir, name);
    snprintf(request, sizeof request, "%s/%s.csr", etcd->dir, name);
    snprintf(cert, sizeof cert, "%s/%s.crt", etcd->dir, name);
    snprintf(extensions, sizeof extensions, "%s/%s.ext", etcd->dir, name);
    snprintf(subject, sizeof subject, "/CN=tether test %s", name);
    FILE *file = fopen(extensions, "w");
    assert_non_null(file);
    fprintf(file, "subjectAltName=%s\n", subject_alt_name);
    fclose(file);
    run((const char *[]){"openssl", "req", "-new", EC_KEY, "-keyout", key, "-out", request, "-subj",
                         subject, NULL});
    run((const char *[]){"openssl", "x509", "-req", "-in", request, "-CA",
                         tether_test_etcd_file(etcd, "ca.crt"), "-CAkey",
                         tether_test_etcd_file(etcd, "ca.key"), "-CAcreateserial", "-out", cert,
                         "-days", "2", "-extfile", extensions, NULL});
}

/* ---- The server ----------------------------------------------------------------------------- */

/* Chooses a loopback address that no other test uses, and ports below the system's ephemeral
 * ports, so that no other process takes them while etcd is down. */
static void choose_place(struct tether_test_etcd *etcd)
{
    snprintf(etcd->address, sizeof etcd->address, "127.%u.%u.%u", 1 + arc4random_uniform(254),
             arc4random_uniform(256), 1 + arc4random_uniform(254));
    int port = 20000 + (int)arc4random_uniform(12000);
    etcd->endpoint[0] = '\0';
    for (int i = 0; i < etcd->opts.members; i++) {
        etcd->members[i].port = port + 2 * i;
        etcd->members[i].peer_port = port + 2 * i + 1;
        size_t len = strlen(etcd->endpoint);
        snprintf(etcd->endpoint + len, sizeof etcd->endpoint - len, "%s%s:%d", i ? "," : "",
                 etcd->address, etcd->members[i].port);
    }
}

static bool listens(const struct tether_test_etcd *etcd, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, etcd->address, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = connect(fd, (struct sockaddr *)&to, sizeof to) == 0;
    close(fd);
    return connected;
}

/* Starts the process of one member. */
static void launch(struct tether_test_etcd *etcd, int member)
{
    char name[8], data[256], client_url[64], peer_url[64], cluster[MAX_MEMBERS * 48] = "";
    struct member *m = &etcd->members[member];
    snprintf(name, sizeof name, "m%d", member);
    snprintf(data, sizeof data, "%s/data-%d", etcd->dir, member);
    snprintf(client_url, sizeof client_url, "%s://%s:%d", etcd->opts.tls ? "https" : "http",
             etcd->address, m->port);
    snprintf(peer_url, sizeof peer_url, "http://%s:%d", etcd->address, m->peer_port);
    for (int i = 0; i < etcd->opts.members; i++)
        snprintf(cluster + strlen(cluster), sizeof cluster - strlen(cluster), "%sm%d=http://%s:%d",
                 i ? "," : "", i, etcd->address, etcd->members[i].peer_port);
    const char *argv[40] = {
        "etcd",
        "--logger=zap",
        "--log-level=error",
        "--name",
        name,
        "--data-dir",
        data,
        "--listen-client-urls",
        client_url,
        "--advertise-client-urls",
        client_url,
        "--listen-peer-urls",
        peer_url,
        "--initial-advertise-peer-urls",
        peer_url,
        "--initial-cluster",
        cluster,
    };
    int n = 17;
    /* short times are safe, because a single member needs no votes of others */
    if (etcd->opts.members == 1) {
        argv[n++] = "--heartbeat-interval=10";
        argv[n++] = "--election-timeout=100";
    }
    if (etcd->opts.tls) {
        argv[n++] = "--client-cert-auth";
        argv[n++] = "--trusted-ca-file";
        argv[n++] = tether_test_etcd_file(etcd, "ca.crt");
        argv[n++] = "--cert-file";
        argv[n++] = tether_test_etcd_file(etcd, "server.crt");
        argv[n++] = "--key-file";
        argv[n++] = tether_test_etcd_file(etcd, "server.key");
    }
    argv[n] = NULL;
    m->child = tether_test_child_start(argv);
}

/* Waits until the member listens; false when it has ended instead. */
static bool await(struct tether_test_etcd *etcd, int member)
{
    struct member *m = &etcd->members[member];
    assert_eventually(tether_test_child_wait(m->child, 0) || listens(etcd, m->port));
    return !m->child->ended;
}

static void fail_with_output(const struct member *m)
{
    if (WIFEXITED(m->child->status) && WEXITSTATUS(m->child->status) == 127)
        fail_msg("there is no etcd to test with: install Debian's etcd-server");
    fail_msg("etcd did not start: %s: %s", tether_test_child_result(m->child),
             tether_test_child_output(m->child));
}

static void make_certificates(struct tether_test_etcd *etcd)
{
    char name[32];
    snprintf(name, sizeof name, "IP:%s", etcd->address);
    make_authority(etcd, "ca");
    make_authority(etcd, "other-ca");
    make_certificate(etcd, "server", name);
    make_certificate(etcd, "client", "DNS:client");
}

struct tether_test_etcd *tether_test_etcd_start(const struct tether_test_etcd_opts *opts)
{
    struct tether_test_etcd *etcd = calloc(1, sizeof *etcd);
    if (opts)
        etcd->opts = *opts;
    if (!etcd->opts.members)
        etcd->opts.members = 1;
    const char *tmp = getenv("TEST_TMPDIR");
    snprintf(etcd->dir, sizeof etcd->dir, "%s/etcd-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(etcd->dir));
    for (int tries = 0;; tries++) {
        choose_place(etcd);
        if (etcd->opts.tls)
            make_certificates(etcd);
        for (int i = 0; i < etcd->opts.members; i++)
            launch(etcd, i);
        bool all = true;
        for (int i = 0; all && i < etcd->opts.members; i++) {
            all = await(etcd, i);
            if (!all && tries == 3)
                fail_with_output(&etcd->members[i]);
        }
        if (all)
            return etcd;
        /* a member has ended, probably because a port was in use: try other ports */
        for (int i = 0; i < etcd->opts.members; i++)
            tether_test_etcd_kill_member(etcd, i);
    }
}

void tether_test_etcd_kill_member(struct tether_test_etcd *etcd, int member)
{
    tether_test_child_free(etcd->members[member].child); /* ends the process by SIGKILL */
    etcd->members[member].child = NULL;
}

void tether_test_etcd_restart_member(struct tether_test_etcd *etcd, int member)
{
    tether_test_etcd_kill_member(etcd, member);
    launch(etcd, member);
    if (!await(etcd, member))
        fail_with_output(&etcd->members[member]);
}

void tether_test_etcd_kill(struct tether_test_etcd *etcd)
{
    tether_test_etcd_kill_member(etcd, 0);
}

void tether_test_etcd_restart(struct tether_test_etcd *etcd)
{
    tether_test_etcd_restart_member(etcd, 0);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

void tether_test_etcd_free(struct tether_test_etcd *etcd)
{
    if (!etcd)
        return;
    for (int i = 0; i < etcd->opts.members; i++)
        tether_test_etcd_kill_member(etcd, i);
    nftw(etcd->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(etcd);
}

pid_t tether_test_etcd_pid(const struct tether_test_etcd *etcd)
{
    return etcd->members[0].child->pid;
}

const char *tether_test_etcd_endpoint(const struct tether_test_etcd *etcd)
{
    return etcd->endpoint;
}
