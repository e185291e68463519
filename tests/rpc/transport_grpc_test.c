/* Lane streams over gRPC, two transports in one process: messages of all sizes, the ways in which a
 * conn ends, and what goes wrong when dialling and listening. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc/transport_grpc.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/heap.h"
#include "tests/lib/wait.h"
#include "tests/rpc/transport_node.h"

#define LIMIT (1u << 20)

static const struct tether__transport_opts listening = {.listen = "127.0.0.1:0",
                                                        .max_message_bytes = LIMIT};
static const struct tether__transport_opts dialling = {.max_message_bytes = LIMIT};

struct pair {
    struct node server, client;
};

static int set_up(void **state)
{
    static struct pair pair;
    node_start(&pair.server, &listening);
    node_start(&pair.client, &dialling);
    *state = &pair;
    return 0;
}

static int tear_down(void **state)
{
    struct pair *pair = *state;
    node_stop(&pair->client);
    node_stop(&pair->server);
    assert_int_equal(wire_live_blocks(), 0);
    return 0;
}

static struct wire *dial(struct pair *pair)
{
    return node_dial(&pair->client, pair->server.transport->address);
}

/* ---- Messages ---- */

static char *pattern(size_t len)
{
    char *data = malloc(len + 1);
    assert_non_null(data);
    for (size_t i = 0; i < len; i++)
        data[i] = (char)(i * 31 + len);
    return data;
}

static void echo_of_all_sizes(void **state)
{
    static const size_t sizes[] = {0,    1,     23,    24,         64,    4095, 4096,
                                   4097, 16384, 65536, LIMIT - 10, LIMIT, 7};
    struct wire *wire = dial(*state);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(sizes); i++) {
        char *data = pattern(sizes[i]);
        wire_send(wire, data, sizes[i]);
        wire_await_messages(wire, i + 1);
        assert_int_equal(wire->last_len, sizes[i]);
        assert_memory_equal(wire->last, data, sizes[i]);
        free(data);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(echo_of_all_sizes, set_up, tear_down),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
