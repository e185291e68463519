/* The key-value core against a model so plain that it can't be wrong: any sequence of changes,
 * waits and cancels must leave both with the same keys, and wake the same waiters at the same step.
 *
 * An input is a list of steps of four bytes: what, which key or waiter, and two arguments.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/store/kv/kv.h"
#include "tests/fuzz/fuzz.h"

#define KEYS 4
#define WAITERS 6
#define ROOM 64 /* bytes of a value, elements of a queue */

enum kind { IDLE, WAIT, WAIT_VALUES, POP, BARRIER, TURN, CLAIM };

struct model_key {
    bool has_value;
    char value[ROOM + 8];
    size_t len;
    char queue[ROOM];
    size_t queue_len;
};

struct model_waiter {
    struct tether__kv_waiter waiter;
    struct tether__kv_claim claim; /* of TURN; once it has one it is CLAIM */
    enum kind kind;
    unsigned keys; /* bits */
    int key, world_size;
    int since; /* step at which it began: the oldest popper is served first */
    bool is_done;
    char popped; /* the popped value */
};

struct world {
    struct tether__kv kv;
    struct model_key keys[KEYS];
    struct model_waiter waiters[WAITERS];
    int step;
    int counted_key; /* the key that this step added to (-1: none), and the sum */
    int64_t count;
};

static tether_bytes key_name(int key)
{
    return tether_bytes_of(&"abcd"[key], 1);
}

static void on_ready(struct tether__kv_waiter *waiter, tether_buf *popped)
{
    struct model_waiter *w = tether__container_of(waiter, struct model_waiter, waiter);
    fuzz_check(w->kind != IDLE && !w->is_done);
    fuzz_check((w->kind == POP) == (popped != NULL));
    w->is_done = true;
    if (popped) {
        fuzz_check(popped->len == 1);
        w->popped = popped->data[0];
    }
}

static bool present(const struct model_key *k)
{
    return k->has_value || k->queue_len > 0;
}

static void model_set(struct model_key *k, const char *value, size_t len)
{
    k->has_value = true;
    k->len = len;
    memcpy(k->value, value, len);
}

/* Adds to the number at a key; false when it is none, or the sum too large. */
static bool model_add(struct model_key *k, int64_t delta, int64_t *sum)
{
    __int128 number = 0;
    if (k->has_value) {
        size_t first = k->len > 0 && k->value[0] == '-';
        if (first == k->len)
            return false;
        for (size_t i = first; i < k->len; i++) {
            if (k->value[i] < '0' || k->value[i] > '9' || number > INT64_MAX)
                return false;
            number = number * 10 + (k->value[i] - '0');
        }
        number = first ? -number : number;
    }
    if (number < INT64_MIN || number > INT64_MAX || number + delta < INT64_MIN ||
        number + delta > INT64_MAX)
        return false;
    *sum = (int64_t)(number + delta);
    char text[24];
    model_set(k, text, (size_t)snprintf(text, sizeof text, "%" PRId64, *sum));
    return true;
}

/* Checks that exactly the complete waiters have been called; they are idle again afterwards. */
static void check_waiters(struct world *world)
{
    for (int i = 0; i < WAITERS; i++) {
        struct model_waiter *w = &world->waiters[i];
        bool done = w->kind == WAIT || w->kind == WAIT_VALUES;
        for (int key = 0; key < KEYS; key++)
            if (w->keys & 1U << key)
                done &= w->kind == WAIT ? present(&world->keys[key]) : world->keys[key].has_value;
        if (w->kind == CLAIM)
            continue;
        if (w->kind == TURN)
            done = world->keys[w->key].has_value;
        if (w->kind == BARRIER)
            done = w->key == world->counted_key && w->world_size <= world->count;
        if (w->kind != POP)
            fuzz_check(w->is_done == done);
        if (w->is_done && w->kind != POP)
            *w = (struct model_waiter){.kind = IDLE};
    }
}

/* How many elements of a queue no waiter has a claim to. */
static size_t unclaimed(const struct world *world, int key)
{
    size_t n = world->keys[key].queue_len;
    for (int i = 0; i < WAITERS; i++)
        n -= world->waiters[i].kind == CLAIM && world->waiters[i].key == key;
    return n;
}

static struct model_waiter *oldest(struct world *world, enum kind kind, int key)
{
    struct model_waiter *found = NULL;
    for (int i = 0; i < WAITERS; i++) {
        struct model_waiter *w = &world->waiters[i];
        if (w->kind == kind && w->key == key && (!found || w->since < found->since))
            found = w;
    }
    return found;
}

static void model_pop(struct model_key *k, size_t index)
{
    memmove(k->queue + index, k->queue + index + 1, --k->queue_len - index);
}

/* Gives the elements of a queue to those who pop, oldest first, then claims to those who wait for
 * their turn. A popper that waits gets the element that is pushed: those before it are claimed. */
static void serve_poppers(struct world *world, int key, bool pushed)
{
    struct model_key *k = &world->keys[key];
    while (unclaimed(world, key) > 0) {
        struct model_waiter *w = oldest(world, POP, key);
        if (w) {
            size_t index = pushed ? k->queue_len - 1 : 0;
            fuzz_check(w->is_done && w->popped == k->queue[index]);
            *w = (struct model_waiter){.kind = IDLE};
            model_pop(k, index);
            continue;
        }
        w = oldest(world, TURN, key);
        if (!w || k->has_value) /* a value wakes all of them, without a claim */
            return;
        fuzz_check(w->is_done && tether__kv_has_claim(&w->claim));
        w->kind = CLAIM;
    }
}

static void check_keys(struct world *world)
{
    size_t count = 0;
    for (int i = 0; i < KEYS; i++) {
        const struct model_key *k = &world->keys[i];
        tether_bytes value;
        fuzz_check(tether__kv_get(&world->kv, key_name(i), &value) == k->has_value);
        fuzz_check(!k->has_value || tether_bytes_equal(value, tether_bytes_of(k->value, k->len)));
        fuzz_check(tether__kv_queue_len(&world->kv, key_name(i)) == k->queue_len);
        fuzz_check(tether__kv_present(&world->kv, key_name(i)) == present(k));
        count += k->has_value;
    }
    fuzz_check(tether__kv_count(&world->kv) == count);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void step_value(struct world *world, int what, int key, const char *text, size_t len)
{
    struct model_key *k = &world->keys[key];
    tether_bytes bytes = tether_bytes_of(text, len), value;
    tether_buf taken = TETHER_BUF_INIT;
    int64_t sum = 0;
    bool swapped = false;
    switch (what) {
        case 0:
            fuzz_check(tether__kv_set(&world->kv, key_name(key), bytes) == TETHER_OK);
            model_set(k, text, len);
            break;
        case 1:
            fuzz_check(tether_buf_assign(&taken, bytes) == TETHER_OK);
            fuzz_check(tether__kv_set_take(&world->kv, key_name(key), &taken) == TETHER_OK);
            model_set(k, text, len);
            break;
        case 2: {
            tether_status st = tether__kv_append(&world->kv, key_name(key), bytes);
            size_t old = k->has_value ? k->len : 0;
            fuzz_check(st == (old + len > ROOM ? TETHER_ETOOBIG : TETHER_OK));
            if (st == TETHER_OK) {
                memcpy(k->value + old, text, len);
                k->has_value = true;
                k->len = old + len;
            }
            break;
        }
        case 3: {
            int64_t delta = len ? text[0] : 0;
            tether_status st = tether__kv_add(&world->kv, key_name(key), delta, &sum);
            if (model_add(k, delta, &world->count)) {
                fuzz_check(st == TETHER_OK && sum == world->count);
                world->counted_key = key;
            } else {
                fuzz_check(st == TETHER_EINVAL);
            }
            break;
        }
        case 4: {
            bool equal =
                tether_bytes_equal(tether_bytes_of(k->value, k->has_value ? k->len : 0), bytes);
            tether_bytes desired = tether_bytes_of("new", 3);
            fuzz_check(tether__kv_compare_set(&world->kv, key_name(key), bytes, desired, &swapped,
                                              &value) == TETHER_OK);
            fuzz_check(swapped == equal);
            if (swapped)
                model_set(k, "new", 3);
            break;
        }
        default:
            fuzz_check(tether__kv_delete(&world->kv, key_name(key)) == k->has_value);
            k->has_value = false;
            break;
    }
}

static void step_multi_set(struct world *world, int first, int second)
{
    tether_bytes keys[] = {key_name(first), key_name(second)};
    tether_bytes values[] = {tether_bytes_of("one", 3), tether_bytes_of("22", 2)};
    fuzz_check(tether__kv_multi_set(&world->kv, keys, values, 2) == TETHER_OK);
    model_set(&world->keys[first], "one", 3);
    model_set(&world->keys[second], "22", 2);
}

static void step_queue(struct world *world, bool push, int key, char element)
{
    struct model_key *k = &world->keys[key];
    tether_buf popped = TETHER_BUF_INIT;
    if (push && k->queue_len < ROOM) {
        tether_bytes bytes = tether_bytes_of(&element, 1);
        fuzz_check(tether__kv_queue_push(&world->kv, key_name(key), bytes) == TETHER_OK);
        k->queue[k->queue_len++] = element;
    } else if (!push) {
        bool can = unclaimed(world, key) > 0;
        fuzz_check(tether__kv_queue_pop(&world->kv, key_name(key), &popped) == can);
        if (can) {
            fuzz_check(popped.data[0] == k->queue[0]);
            model_pop(k, 0);
        }
    }
    tether_buf_fini(&popped);
    serve_poppers(world, key, push);
}

static void use_claim(struct world *world, struct model_waiter *w, bool pop)
{
    struct model_key *k = &world->keys[w->key];
    int key = w->key;
    tether_buf popped = TETHER_BUF_INIT;
    if (pop) {
        fuzz_check(tether__kv_claim_pop(&world->kv, &w->claim, key_name(key), &popped));
        fuzz_check(popped.data[0] == k->queue[0]);
        model_pop(k, 0);
    } else {
        tether__kv_claim_drop(&world->kv, &w->claim);
    }
    fuzz_check(!tether__kv_has_claim(&w->claim));
    *w = (struct model_waiter){.kind = IDLE};
    tether_buf_fini(&popped);
    serve_poppers(world, key, false);
}

static void step_wait(struct world *world, int index, enum kind kind, int key, unsigned keys)
{
    struct model_waiter *w = &world->waiters[index];
    if (w->kind == CLAIM) {
        use_claim(world, w, keys & 1);
        return;
    }
    if (w->kind != IDLE) {
        tether__kv_cancel(&world->kv, &w->waiter);
        *w = (struct model_waiter){.kind = IDLE};
        return;
    }
    tether_bytes names[KEYS];
    size_t n = 0;
    for (int i = 0; i < KEYS; i++)
        if (keys & 1U << i)
            names[n++] = key_name(i);
    *w = (struct model_waiter){.kind = kind, .keys = keys, .key = key, .since = world->step};
    tether_status st;
    if (kind == WAIT)
        st = tether__kv_wait(&world->kv, &w->waiter, TETHER__KV_WANT_ANY, names, n, on_ready);
    else if (kind == WAIT_VALUES)
        st = tether__kv_wait(&world->kv, &w->waiter, TETHER__KV_WANT_VALUE, names, n, on_ready);
    else if (kind == POP)
        st = tether__kv_wait_pop(&world->kv, &w->waiter, key_name(key), on_ready);
    else if (kind == TURN)
        st = tether__kv_wait_turn(&world->kv, &w->waiter, key_name(key), &w->claim, on_ready);
    else {
        w->world_size = (int)keys % 5;
        st =
            tether__kv_wait_barrier(&world->kv, &w->waiter, key_name(key), w->world_size, on_ready);
        if (model_add(&world->keys[key], 1, &world->count)) {
            world->counted_key = key;
        } else {
            fuzz_check(st == TETHER_EINVAL);
            *w = (struct model_waiter){.kind = IDLE};
            return;
        }
    }
    fuzz_check(st == TETHER_OK);
    if (kind == POP || kind == TURN)
        serve_poppers(world, key, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world world = {.step = 0};
    fuzz_check(tether__kv_init(&world.kv, ROOM) == TETHER_OK);
    for (; size >= 4 && world.step < 4096; data += 4, size -= 4, world.step++) {
        int what = data[0] % 14, key = data[1] % KEYS;
        world.counted_key = -1;
        char text[ROOM];
        size_t len = data[2] % 8;
        memset(text, data[3], sizeof text);
        if (what < 6)
            step_value(&world, what, key, text, len);
        else if (what == 6)
            step_multi_set(&world, key, data[2] % KEYS);
        else if (what < 9)
            step_queue(&world, what == 7, key, (char)data[2]);
        else
            step_wait(&world, data[1] % WAITERS, (enum kind)(WAIT + what - 9), data[2] % KEYS,
                      data[3] & 15U);
        check_waiters(&world);
        check_keys(&world);
    }
    for (int i = 0; i < WAITERS; i++) {
        if (world.waiters[i].kind == CLAIM)
            tether__kv_claim_drop(&world.kv, &world.waiters[i].claim);
        else
            tether__kv_cancel(&world.kv, &world.waiters[i].waiter);
    }
    tether__kv_fini(&world.kv);
    return 0;
}
