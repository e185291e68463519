/* A server that behaves as one version of PyTorch's. A thread for each connection; one lock. */
#include "tests/rendezvous/store/tcp/torch_server.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/cmocka.h"

/* The opcodes of dialect V. */
enum { VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND };
enum { MULTI_GET = 10, MULTI_SET, CANCEL_WAIT, PING, PUSH, POP, LEN, LIST_KEYS, BARRIER };

const struct torch_version torch_2_1 = {"2.1", false, CANCEL_WAIT, false};
const struct torch_version torch_2_4 = {"2.4", true, CANCEL_WAIT, true};
const struct torch_version torch_2_8 = {"2.8", true, LEN, true};
const struct torch_version torch_2_8_legacy = {"2.8 without libuv", true, PING, false};
const struct torch_version torch_2_11 = {"2.11", true, BARRIER, true};

#define MAX_CONNECTIONS 1024
#define MAGIC 0x3C85F7CEu

struct string {
    char *data;
    uint64_t len;
};

struct element {
    struct element *next;
    struct string value;
};

struct entry {
    struct entry *next;
    struct string key, value;
    bool has_value;
    struct element *first, *last;
    int64_t n_elements;
};

struct torch_server {
    const struct torch_version *version;
    int listen_fd, port;
    pthread_t accepter;
    /* under mu */
    pthread_mutex_t mu;
    struct entry *entries;
    int fds[MAX_CONNECTIONS];
    pthread_t threads[MAX_CONNECTIONS];
    int n, unknown_ops;
    bool is_stopping;
};

struct connection {
    struct torch_server *torch;
    int fd;
    bool is_broken; /* the client has closed, or must be closed */
};

/* ---- Bytes ---------------------------------------------------------------------------------- */

static void get(struct connection *conn, void *to, size_t len)
{
    if (len && !conn->is_broken && recv(conn->fd, to, len, MSG_WAITALL) != (ssize_t)len)
        conn->is_broken = true;
    if (conn->is_broken)
        memset(to, 0, len);
}

static uint64_t get_u64(struct connection *conn)
{
    uint64_t value = 0;
    get(conn, &value, sizeof value);
    return value;
}

static struct string get_string(struct connection *conn)
{
    struct string string = {.len = get_u64(conn)};
    if (string.len > (uint64_t)1 << 30)
        conn->is_broken = true;
    if (conn->is_broken)
        string.len = 0;
    string.data = malloc(string.len + 1);
    get(conn, string.data, string.len);
    string.data[string.len] = '\0';
    return string;
}

static void put(struct connection *conn, const void *from, size_t len)
{
    for (size_t done = 0; !conn->is_broken && done < len;) {
        ssize_t n = send(conn->fd, (const char *)from + done, len - done, MSG_NOSIGNAL);
        conn->is_broken = n <= 0;
        done += n > 0 ? (size_t)n : 0;
    }
}

static void put_u8(struct connection *conn, uint8_t value)
{
    put(conn, &value, 1);
}

static void put_i64(struct connection *conn, int64_t value)
{
    put(conn, &value, sizeof value);
}

static void put_string(struct connection *conn, struct string string)
{
    put(conn, &string.len, sizeof string.len);
    put(conn, string.data, string.len);
}

/* ---- Keys ----------------------------------------------------------------------------------- */

static struct string copy(struct string from)
{
    struct string to = {malloc(from.len + 1), from.len};
    memcpy(to.data, from.data, from.len);
    to.data[to.len] = '\0';
    return to;
}

static bool equal(struct string a, struct string b)
{
    return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

static struct entry *find(struct torch_server *torch, struct string key, bool make)
{
    struct entry *entry = torch->entries;
    while (entry && !equal(entry->key, key))
        entry = entry->next;
    if (!entry && make) {
        entry = calloc(1, sizeof *entry);
        entry->key = copy(key);
        entry->next = torch->entries;
        torch->entries = entry;
    }
    return entry;
}

static bool is_present(struct torch_server *torch, struct string key)
{
    struct entry *entry = find(torch, key, false);
    return entry && (entry->has_value || entry->n_elements > 0);
}

static void assign(struct entry *entry, const char *data, size_t len)
{
    char *copied = malloc(len + 1);
    memcpy(copied, data, len);
    copied[len] = '\0';
    free(entry->value.data);
    entry->value.data = copied;
    entry->value.len = len;
    entry->has_value = true;
}

/* Accepts whole numbers only; PyTorch's server accepts the same text as strtoll(). */
static bool add(struct entry *entry, int64_t delta, int64_t *sum)
{
    char text[32], *end = text;
    *sum = entry->has_value ? strtoll(entry->value.data, &end, 10) : 0;
    snprintf(text, sizeof text, "%" PRId64, *sum);
    if (entry->has_value && strcmp(text, entry->value.data) != 0)
        return false;
    if (__builtin_add_overflow(*sum, delta, sum))
        return false;
    assign(entry, text, (size_t)snprintf(text, sizeof text, "%" PRId64, *sum));
    return true;
}

/* ---- Requests ------------------------------------------------------------------------------- */

typedef bool ready_fn(struct torch_server *torch, const struct string *keys, uint64_t n);

static bool all_present(struct torch_server *torch, const struct string *keys, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!is_present(torch, keys[i]))
            return false;
    return true;
}

/* Waits with the lock, which is released meanwhile. Arriving bytes end the wait. */
static void wait_until(struct connection *conn,
                       ready_fn *ready,
                       const struct string *keys,
                       uint64_t n,
                       int64_t world)
{
    struct torch_server *torch = conn->torch;
    while (!conn->is_broken && !torch->is_stopping) {
        struct entry *entry = world ? find(torch, keys[0], true) : NULL;
        if (entry ? strtoll(entry->value.data, NULL, 10) >= world : ready(torch, keys, n)) {
            put_u8(conn, 0);
            return;
        }
        pthread_mutex_unlock(&torch->mu);
        struct pollfd poller = {.fd = conn->fd, .events = POLLIN};
        bool came = poll(&poller, 1, 5) != 0;
        pthread_mutex_lock(&torch->mu);
        if (came)
            return;
    }
}

static void free_strings(struct string *strings, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        free(strings[i].data);
    free(strings);
}

static void handle_keys(struct connection *conn, int op, const struct string *keys, uint64_t n)
{
    struct torch_server *torch = conn->torch;
    if (op == CHECK)
        put_u8(conn, all_present(torch, keys, n) ? 0 : 1);
    else if (op == WAIT)
        wait_until(conn, all_present, keys, n, 0);
    else
        for (uint64_t i = 0; i < n; i++) {
            struct entry *entry = find(torch, keys[i], false);
            bool found = entry && entry->has_value;
            if (!found && !torch->version->is_libuv)
                conn->is_broken = true;
            put_string(conn, found ? entry->value : (struct string){NULL, 0});
        }
}

static void handle_queue(struct connection *conn, int op, struct string key, struct string value)
{
    struct entry *entry = find(conn->torch, key, true);
    if (op == PUSH) {
        struct element *element = calloc(1, sizeof *element);
        element->value = copy(value);
        if (entry->last)
            entry->last->next = element;
        else
            entry->first = element;
        entry->last = element;
        entry->n_elements++;
        return;
    }
    put_i64(conn, entry->n_elements);
    struct element *element = entry->first;
    if (op == LEN || !element)
        return;
    entry->first = element->next;
    if (!entry->first)
        entry->last = NULL;
    entry->n_elements--;
    put_string(conn, element->value);
    free(element->value.data);
    free(element);
}

static void handle_value(struct connection *conn, int op, struct string key)
{
    struct torch_server *torch = conn->torch;
    struct string first = {NULL, 0}, second = {NULL, 0};
    int64_t number = 0;
    if (op == SET || op == APPEND || op == COMPARE_SET || op == PUSH) {
        pthread_mutex_unlock(&torch->mu);
        first = get_string(conn);
        if (op == COMPARE_SET)
            second = get_string(conn);
        pthread_mutex_lock(&torch->mu);
    }
    if (op == ADD || op == BARRIER)
        number = (int64_t)get_u64(conn);
    struct entry *entry = conn->is_broken ? NULL : find(torch, key, op != GET && op != DELETE);
    if (conn->is_broken)
        goto out;
    switch (op) {
        case SET:
            assign(entry, first.data, first.len);
            break;
        case APPEND: {
            size_t len = entry->has_value ? entry->value.len : 0;
            char *both = malloc(len + first.len + 1);
            if (len)
                memcpy(both, entry->value.data, len);
            memcpy(both + len, first.data, first.len);
            assign(entry, both, len + first.len);
            free(both);
            break;
        }
        case COMPARE_SET:
            if (entry->has_value ? equal(entry->value, first) : first.len == 0)
                assign(entry, second.data, second.len);
            put_string(conn, entry->has_value ? entry->value : first);
            break;
        case ADD:
            if (add(entry, number, &number))
                put_i64(conn, number);
            else
                conn->is_broken = true;
            break;
        case GET:
            handle_keys(conn, MULTI_GET, &key, 1);
            break;
        case DELETE:
            put_i64(conn, entry && entry->has_value);
            if (entry)
                entry->has_value = false;
            break;
        case BARRIER: {
            int64_t sum;
            if (add(entry, 1, &sum))
                wait_until(conn, NULL, &key, 1, number);
            else
                conn->is_broken = true;
            break;
        }
        default:
            handle_queue(conn, op, key, first);
    }
out:
    free(first.data);
    free(second.data);
}

static void handle_list(struct connection *conn, int op)
{
    struct torch_server *torch = conn->torch;
    int64_t count = 0;
    for (struct entry *entry = torch->entries; entry; entry = entry->next)
        count += entry->has_value;
    put_i64(conn, count);
    if (op == NUM_KEYS)
        return;
    for (struct entry *entry = torch->entries; entry; entry = entry->next)
        if (entry->has_value)
            put_string(conn, entry->key);
}

static void handle(struct connection *conn, int op)
{
    struct torch_server *torch = conn->torch;
    struct string *strings = NULL, key = {NULL, 0};
    uint64_t n = 0;
    if (op == CHECK || op == WAIT || op == MULTI_GET || op == MULTI_SET) {
        n = get_u64(conn) * (op == MULTI_SET ? 2 : 1);
        if (n > 1 << 20)
            conn->is_broken = true;
        if (conn->is_broken)
            return;
        strings = calloc(n + 1, sizeof *strings);
        for (uint64_t i = 0; i < n; i++)
            strings[i] = get_string(conn);
    } else if (op != NUM_KEYS && op != LIST_KEYS && op != CANCEL_WAIT && op != PING) {
        key = get_string(conn);
    }
    uint32_t nonce = 0;
    if (op == PING)
        get(conn, &nonce, sizeof nonce);
    pthread_mutex_lock(&torch->mu);
    if (conn->is_broken) {
        /* nothing */
    } else if (op == MULTI_SET) {
        for (uint64_t i = 0; i < n; i += 2)
            assign(find(torch, strings[i], true), strings[i + 1].data, strings[i + 1].len);
    } else if (strings) {
        handle_keys(conn, op, strings, n);
    } else if (op == CANCEL_WAIT) {
        put_u8(conn, 1);
    } else if (op == PING) {
        put(conn, &nonce, sizeof nonce);
    } else if (op == NUM_KEYS || op == LIST_KEYS) {
        handle_list(conn, op);
    } else {
        handle_value(conn, op, key);
    }
    pthread_mutex_unlock(&torch->mu);
    free_strings(strings, n);
    free(key.data);
}

static void *serve(void *arg)
{
    struct connection *conn = arg;
    const struct torch_version *version = conn->torch->version;
    bool validated = !version->has_validate;
    while (!conn->is_broken) {
        uint8_t byte;
        get(conn, &byte, 1);
        int op = byte + (version->has_validate ? 0 : 1); /* L1 has all but VALIDATE */
        if (conn->is_broken)
            break;
        if (op == VALIDATE) {
            uint32_t magic;
            get(conn, &magic, sizeof magic);
            conn->is_broken = magic != MAGIC;
            validated = true;
        } else if (!validated || op > version->last_op) {
            pthread_mutex_lock(&conn->torch->mu);
            conn->torch->unknown_ops++;
            pthread_mutex_unlock(&conn->torch->mu);
            break;
        } else {
            handle(conn, op);
        }
    }
    shutdown(conn->fd, SHUT_RDWR); /* torch_server_stop() closes it */
    free(conn);
    return NULL;
}

/* ---- Starting and stopping ------------------------------------------------------------------ */

static void *accept_all(void *arg)
{
    struct torch_server *torch = arg;
    for (;;) {
        int fd = accept(torch->listen_fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct connection *conn = calloc(1, sizeof *conn);
        *conn = (struct connection){.torch = torch, .fd = fd};
        pthread_mutex_lock(&torch->mu);
        assert_true(torch->n < MAX_CONNECTIONS);
        torch->fds[torch->n] = fd;
        assert_int_equal(pthread_create(&torch->threads[torch->n], NULL, serve, conn), 0);
        torch->n++;
        pthread_mutex_unlock(&torch->mu);
    }
}

struct torch_server *torch_server_start(const struct torch_version *version)
{
    struct torch_server *torch = calloc(1, sizeof *torch);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    torch->version = version;
    pthread_mutex_init(&torch->mu, NULL);
    torch->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(torch->listen_fd, (struct sockaddr *)&addr, len), 0);
    assert_int_equal(listen(torch->listen_fd, 64), 0);
    assert_int_equal(getsockname(torch->listen_fd, (struct sockaddr *)&addr, &len), 0);
    torch->port = ntohs(addr.sin_port);
    assert_int_equal(pthread_create(&torch->accepter, NULL, accept_all, torch), 0);
    return torch;
}

int torch_server_port(const struct torch_server *torch)
{
    return torch->port;
}

int torch_server_unknown_ops(struct torch_server *torch)
{
    pthread_mutex_lock(&torch->mu);
    int n = torch->unknown_ops;
    pthread_mutex_unlock(&torch->mu);
    return n;
}

void torch_server_stop(struct torch_server *torch)
{
    shutdown(torch->listen_fd, SHUT_RDWR);
    pthread_join(torch->accepter, NULL);
    close(torch->listen_fd);
    pthread_mutex_lock(&torch->mu);
    torch->is_stopping = true;
    for (int i = 0; i < torch->n; i++)
        shutdown(torch->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&torch->mu);
    for (int i = 0; i < torch->n; i++) {
        pthread_join(torch->threads[i], NULL);
        close(torch->fds[i]);
    }
    for (struct entry *entry = torch->entries, *next; entry; entry = next) {
        next = entry->next;
        for (struct element *element = entry->first, *after; element; element = after) {
            after = element->next;
            free(element->value.data);
            free(element);
        }
        free(entry->key.data);
        free(entry->value.data);
        free(entry);
    }
    pthread_mutex_destroy(&torch->mu);
    free(torch);
}
