/* Mistakes on the way to each other: stores, URLs, groups that never become complete. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rendezvous/elastic/rules/settings.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/store_etcd.h"
#include "rendezvous/store_tcp.h"
#include "tests/errors/mistakes.h"
#include "tests/errors/pair.h"
#include "tests/lib/cmocka.h"
#include "tests/lib/port.h"

/* ---- URLs and the environment ---- */

static tether_status meet_as(const char *url, int rank, int world_size, tether_error *err)
{
    struct tether_world world = {NULL, 0, 0};
    tether_status st = tether_rendezvous(url, rank, world_size, PATIENCE_MS, &world, err);
    if (st == TETHER_OK)
        tether_world_fini(&world);
    return st;
}

static tether_status meet(const char *url, tether_error *err)
{
    return meet_as(url, -1, -1, err);
}

MISTAKE(url_that_is_none)
{
    return meet("127.0.0.1:29500", err);
}
MISTAKE(url_without_a_port)
{
    return meet("tcp://127.0.0.1?rank=0&world_size=1", err);
}
MISTAKE(port_that_is_none)
{
    return meet("tcp://127.0.0.1:99999?rank=0&world_size=1", err);
}
MISTAKE(scheme_nobody_knows)
{
    return meet("tpc://127.0.0.1:29500", err);
}
MISTAKE(rank_beyond_the_world)
{
    return meet("tcp://127.0.0.1:29500?rank=4&world_size=4", err);
}
MISTAKE(rank_given_twice)
{
    return meet_as("tcp://127.0.0.1:29500?rank=0&world_size=1", 0, 1, err);
}
MISTAKE(rank_not_given)
{
    return meet("tcp://127.0.0.1:29500", err);
}
MISTAKE(parameter_misspelt)
{
    return meet("tcp://127.0.0.1:29500?rnak=0&world_size=1", err);
}

MISTAKE(environment_not_set)
{
    unsetenv("RANK");
    return meet("env://", err);
}

MISTAKE(environment_that_is_no_number)
{
    setenv("RANK", "zero", true);
    setenv("WORLD_SIZE", "1", true);
    tether_status st = meet("env://", err);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    return st;
}

/* ---- Groups ---- */

MISTAKE(world_never_complete)
{
    return make_agent_alone(OPTS(.rank = 0, .world_size = 3, .start_timeout_ms = 300), err);
}

MISTAKE(two_of_one_name)
{
    tether_store *store = NULL;
    tether_agent *first = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    /* Rank 0 is called twin; it can't start before rank 1 is there, so only its record is. */
    tether_status st = tether_agent_new(TETHER_AGENT_OPTS(.name = "twin", .store = store, .rank = 0,
                                                          .world_size = 2, .start_timeout_ms = 1),
                                        &first, err);
    if (st == TETHER_OK)
        tether_agent_start(first, NULL);
    st = make_agent(OPTS(.name = "twin", .store = store, .rank = 1, .world_size = 2,
                         .start_timeout_ms = PATIENCE_MS),
                    err);
    tether_agent_release(first);
    tether_store_release(store);
    return st;
}

MISTAKE(more_nodes_at_least_than_at_most)
{
    struct tether_rdzv_settings settings;
    tether_rdzv_settings_init(&settings);
    settings.run_id = "job";
    settings.min_nodes = 3;
    settings.max_nodes = 2;
    return tether_rdzv_settings_check(&settings, err);
}

/* ---- Stores ---- */

static tether_status connect_to(int port, tether_error *err)
{
    tether_store *store = NULL;
    tether_status st = tether_store_tcp_new(
        TETHER_STORE_TCP_OPTS(.port = port, .timeout_ms = PATIENCE_MS), &store, err);
    tether_store_release(store);
    return st;
}

MISTAKE(no_store_listens)
{
    return connect_to(tether_test_quiet_port(), err);
}

/* A worker's own port in place of the store's. */
MISTAKE(something_else_listens)
{
    struct pair pair = pair_start(OPTS(.no_unix_socket = true), OPTS(0));
    tether_status st = connect_to(atoi(strchr(tether_agent_address(pair.a), ':') + 1), err);
    pair_stop(&pair);
    return st;
}

MISTAKE(no_etcd_listens)
{
    char endpoint[32];
    tether_store *store = NULL;
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", tether_test_quiet_port());
    return tether_store_etcd_new(
        TETHER_STORE_ETCD_OPTS(.endpoints = endpoint, .timeout_ms = PATIENCE_MS), &store, err);
}

MISTAKE(port_in_use)
{
    tether_store_server *server = NULL, *second = NULL;
    assert_int_equal(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, NULL),
                     TETHER_OK);
    tether_status st = tether_store_server_new(
        TETHER_STORE_SERVER_OPTS(.port = tether_store_server_port(server)), &second, err);
    tether_store_server_release(server);
    return st;
}

MISTAKE(store_beyond_this_host)
{
    tether_store_server *server = NULL;
    return tether_store_server_new(TETHER_STORE_SERVER_OPTS(.host = "0.0.0.0"), &server, err);
}

MISTAKE(store_that_has_gone)
{
    tether_store_server *server = NULL;
    tether_store *store = NULL;
    assert_int_equal(tether_store_server_new(TETHER_STORE_SERVER_OPTS(0), &server, NULL),
                     TETHER_OK);
    assert_int_equal(
        tether_store_tcp_new(TETHER_STORE_TCP_OPTS(.port = tether_store_server_port(server)),
                             &store, NULL),
        TETHER_OK);
    tether_store_server_release(server);
    tether_status st = tether_store_set(store, "k", tether_bytes_str("v"), PATIENCE_MS, err);
    tether_store_release(store);
    return st;
}

MISTAKE(file_in_no_folder)
{
    tether_store *store = NULL;
    return tether_store_file_new("/nowhere/store", 1, &store, err);
}

/* A path of the greatest length that the system accepts. */
MISTAKE(file_of_the_longest_path)
{
    char path[PATH_MAX] = "/nowhere";
    while (strlen(path) + 101 < sizeof path)
        sprintf(path + strlen(path), "/%099d", 0);
    tether_store *store = NULL;
    return tether_store_file_new(path, 1, &store, err);
}

MISTAKE(file_that_is_no_store)
{
    char path[] = "/tmp/tether-mistake-XXXXXX";
    tether_store *store = NULL;
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "some text of somebody's\n", 24), 24);
    tether_status st = tether_store_file_new(path, 1, &store, err);
    close(fd);
    unlink(path);
    return st;
}

/* On a store that has one key, `text`. */
static tether_store *store_with_text(void)
{
    tether_store *store = NULL;
    assert_int_equal(tether_store_hash_new(&store, NULL), TETHER_OK);
    assert_int_equal(tether_store_set(store, "text", tether_bytes_str("abc"), 0, NULL), TETHER_OK);
    return store;
}

MISTAKE(key_that_never_comes)
{
    tether_store *store = store_with_text();
    tether_buf value = TETHER_BUF_INIT;
    tether_status st = tether_store_get(store, "txet", 100, &value, err);
    tether_store_release(store);
    return st;
}

MISTAKE(adding_to_a_text)
{
    tether_store *store = store_with_text();
    int64_t sum;
    tether_status st = tether_store_add(store, "text", 1, 0, &sum, err);
    tether_store_release(store);
    return st;
}

const struct mistake meeting_mistakes[] = {
    ROW(url_that_is_none, EINVAL, "is not a URL", "'127.0.0.1:29500'", "write scheme://"),
    ROW(url_without_a_port, EINVAL, "port number missing", "tcp://", "write tcp://127.0.0.1:PORT"),
    ROW(port_that_is_none,
        EINVAL,
        "the port is 99999",
        "'tcp://127.0.0.1:99999",
        "from 0 to 65535"),
    ROW(scheme_nobody_knows, ENOTFOUND, "No rendezvous handler", "tpc://", "use env, tcp, file"),
    ROW(rank_beyond_the_world, EINVAL, "outside a world of 4", "tcp://", "from 0 to 3"),
    ROW(rank_given_twice, EINVAL, "rank", "URL", "not both"),
    ROW(rank_not_given, EINVAL, "missing", "tcp://", "rank="),
    ROW(parameter_misspelt, EINVAL, "does not know query parameter 'rnak'", "tcp://", "only rank"),
    ROW(environment_not_set, EINVAL, "RANK expected, but not set", "env://", "tether-run"),
    ROW(environment_that_is_no_number, EINVAL, "'zero'", "RANK", "give one"),
    ROW(world_never_complete, ETIMEOUT, "did not join", "rank 1, 2 of 3", "same meeting point"),
    ROW(two_of_one_name, EEXIST, "both called 'twin'", "ranks 0 and 1", "name of its own"),
    ROW(more_nodes_at_least_than_at_most, EINVAL, "(3)", "nodes", "must"),
    ROW(no_store_listens, ETIMEOUT, "refused", "(127.0.0.1, ", "does a store"),
    ROW(something_else_listens,
        EUNAVAILABLE,
        "is not a store",
        "(127.0.0.1, ",
        "check host and port"),
    ROW(no_etcd_listens, EUNAVAILABLE, "failed to connect", "127.0.0.1:", "is etcd running there?"),
    ROW(port_in_use, EADDRINUSE, "Address already in use", "127.0.0.1:", "choose another port"),
    ROW(store_beyond_this_host,
        EPERM,
        "could read and write the store",
        "0.0.0.0",
        "set 'insecure'"),
    ROW(store_that_has_gone,
        EUNAVAILABLE,
        "refused",
        "set 'k' on tcp store 127.0.0.1:",
        "does a store"),
    ROW(file_in_no_folder, EIO, "No such file", "/nowhere/store", "give a path"),
    ROW(file_of_the_longest_path, EIO, "No such file", "/nowhere/0", "give a path"),
    ROW(file_that_is_no_store,
        ECORRUPT,
        "not the file of a store",
        "/tmp/tether-mistake-",
        "give another path"),
    ROW(key_that_never_comes,
        ETIMEOUT,
        "no client has set it",
        "get 'txet' on hash store",
        "is its writer running"),
    ROW(adding_to_a_text,
        EINVAL,
        "not a whole number",
        "add 'text' on hash store",
        "count in another key"),
    {0},
};
