/* Searches for the token of a running worker: on its command line, in its environment, in its log
 * and errors, and in the memory that a core dump would contain. The worker reads its token from a
 * file, as users should, and has authenticated to others over both transports. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "rpc/agent.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/proc.h"
#include "tests/rpc/lib/echo.h"

#define LIMIT TETHER_TEST_LIMIT_MS
#define LEN 32
#define MASK 0x15

/* The token, masked: so this program has it only where it is put. */
static const uint8_t masked[LEN + 1] = "q9-secret-q9-token-q9-for-dumps!";

static void unmask(char ret_token[LEN + 1])
{
    for (int i = 0; i < LEN; i++)
        ret_token[i] = (char)(masked[i] ^ MASK);
    ret_token[LEN] = '\0';
}

static bool has_token(const uint8_t *bytes, size_t len)
{
    for (size_t at = 0; at + LEN <= len; at++) {
        int i = 0;
        while (i < LEN && (bytes[at + (size_t)i] ^ MASK) == masked[i])
            i++;
        if (i == LEN)
            return true;
    }
    return false;
}

static bool file_has_token(const char *path)
{
    static uint8_t bytes[1 << 16];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t len = read(fd, bytes, sizeof bytes);
    close(fd);
    assert_true(len > 0);
    bool found = has_token(bytes, (size_t)len);
    explicit_bzero(bytes, sizeof bytes);
    return found;
}

/* ---- What a core dump would have ---- */

/* Memory that the process can write to is dumped, unless its flags have "dd". */
struct mapping {
    unsigned long from, to;
    bool is_writable, is_left_out;
};

static bool next_mapping(FILE *smaps, struct mapping *ret)
{
    char line[1024], rights[8];
    unsigned long from, to;
    bool found = false;
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3) {
            *ret = (struct mapping){from, to, rights[0] == 'r' && rights[1] == 'w', false};
            found = true;
        } else if (found && strncmp(line, "VmFlags:", 8) == 0) {
            ret->is_left_out = strstr(line, " dd") != NULL;
            return true;
        }
    }
    return false;
}

/* How many pieces of memory have the token: of memory that is dumped, and of memory that is not. */
static void search_memory(int *ret_dumped, int *ret_left_out)
{
    enum { CHUNK = 1 << 20 };
    uint8_t *bytes = malloc(CHUNK + LEN);
    FILE *smaps = fopen("/proc/self/smaps", "re");
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    struct mapping mapping;
    assert_true(bytes && smaps && memory >= 0);
    *ret_dumped = *ret_left_out = 0;
    while (next_mapping(smaps, &mapping)) {
        /* Sanitizers reserve terabytes. */
        if (!mapping.is_writable || mapping.to - mapping.from > (1UL << 28))
            continue;
        for (unsigned long at = mapping.from; at < mapping.to; at += CHUNK) {
            size_t want = mapping.to - at < CHUNK ? mapping.to - at : CHUNK;
            bool holds_chunk = at <= (unsigned long)bytes && (unsigned long)bytes < at + want;
            ssize_t got = pread(memory, bytes, want, (off_t)at);
            if (got > 0 && has_token(bytes, (size_t)got) && !holds_chunk)
                ++*(mapping.is_left_out ? ret_left_out : ret_dumped);
            explicit_bzero(bytes, CHUNK);
        }
    }
    close(memory);
    fclose(smaps);
    free(bytes);
}

/* ---- The worker ---- */

static _Atomic int n_logged, n_leaked;

static void on_log(void *userdata, tether_log_level level, const char *area, const char *message)
{
    (void)userdata, (void)level, (void)area;
    n_logged++;
    n_leaked += has_token((const uint8_t *)message, strlen(message));
}

/* `token`: wiped when the agent has it. */
static tether_agent *start(tether_store *store, const char *name, char *token, bool local)
{
    tether_agent *agent = NULL;
    tether_error err = {0};
    if (tether_agent_new(TETHER_AGENT_OPTS(.name = name, .store = store, .token = token,
                                           .threads = 1, .no_unix_socket = !local),
                         &agent, &err) ||
        tether_agent_register_inline(agent, "echo", tether_test_echo, NULL, &err) ||
        tether_agent_start(agent, &err))
        fail_msg("%s", err.message);
    explicit_bzero(token, strlen(token));
    return agent;
}

static tether_agent *start_from_file(tether_store *store, const char *path, bool local)
{
    char token[LEN + 1] = "", name[16];
    static int n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, token, LEN), LEN);
    close(fd);
    snprintf(name, sizeof name, "w%d", n++);
    return start(store, name, token, local);
}

/* Runs in a process of its own, whose command line and environment others can see. */
TETHER_PROC_TEST(token_is_nowhere_to_be_found_when_worker_runs, .ranks = 1)
{
    char path[] = "/tmp/tether-secret-XXXXXX", token[LEN + 1], wrong[] = "another token";
    tether_store *store = NULL;
    tether_error err = {0};
    int dumped, left_out, fd = mkstemp(path);
    assert_true(fd >= 0);
    unmask(token);
    assert_int_equal(write(fd, token, LEN), LEN);
    close(fd);
    search_memory(&dumped, &left_out);
    assert_true(dumped > 0); /* the search would find it */
    explicit_bzero(token, sizeof token);
    assert_true(file_has_token(path));

    tether_set_log(TETHER_LOG_TRACE, on_log, NULL);
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    tether_agent *agents[] = {start_from_file(store, path, true),
                              start_from_file(store, path, true),
                              start_from_file(store, path, false)};
    for (int i = 1; i < 3; i++)
        if (tether_rpc_sync(agents[i], "w0", "echo", NULL, LIMIT, NULL, &err))
            fail_msg("%s", err.message);
    tether_agent *intruder = start(store, "intruder", wrong, false);
    assert_int_not_equal(tether_rpc_sync(intruder, "w0", "echo", NULL, LIMIT, NULL, &err),
                         TETHER_OK);
    assert_false(has_token((const uint8_t *)err.message, strlen(err.message)));

    search_memory(&dumped, &left_out);
    print_message("%d pieces of memory that is dumped have it, %d of memory that is not\n", dumped,
                  left_out);
    assert_int_equal(dumped, 0);
    assert_true(left_out > 0); /* the workers have it */
    assert_false(file_has_token("/proc/self/cmdline"));
    assert_false(file_has_token("/proc/self/environ"));
    tether_agent_release(intruder);
    for (int i = 0; i < 3; i++)
        tether_agent_release(agents[i]);
    tether_store_release(store);
    tether_set_log(TETHER_LOG_NONE, NULL, NULL);
    assert_true(n_logged > 0);
    assert_int_equal(n_leaked, 0);
    search_memory(&dumped, &left_out);
    assert_int_equal(dumped + left_out, 0); /* wiped */
    unlink(path);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_is_nowhere_to_be_found_when_worker_runs),
    };
    return cmocka_run_group_tests_name("secret_leak", tests, NULL, NULL);
}
