/* Measures the cost of a message in the lane: it is queued and pulled at one end, received and
 * delivered at the other, and acknowledged. Both ends run in one thread without a transport; pulled
 * bytes are received directly.
 *
 * The goal for 64 bytes, 64 messages packed into a batch: less than 200 ns a message. From 4 KiB on
 * most of the cost is the copy that stands for the socket.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/counts.h"
#include "bench/lib/measure.h"
#include "bench/lib/options.h"
#include "bench/lib/results.h"
#include "rpc/lane/lane.h"

struct row {
    const char *name;
    size_t payload;
    size_t batch; /* messages queued before the first pull */
};

static const struct row rows[] = {
    {"64B-alone", 64, 1},     {"64B-by-8", 64, 8},       {"64B-by-64", 64, 64},
    {"1KiB-by-64", 1024, 64}, {"64KiB-alone", 65536, 1}, {"1MiB-in-pieces", 1 << 20, 1},
};

static void must(bool condition)
{
    if (!condition)
        abort();
}

static void receive(struct tether__lane *lane, struct tether__slice batch, size_t *delivered)
{
    struct tether__lane_cursor cursor = tether__lane_begin(lane, batch, NULL);
    struct tether__inbound message;
    for (; tether__lane_next(lane, &cursor, &message); ++*delivered)
        tether__lane_accept(lane, &cursor);
    must(cursor.status == TETHER_OK);
}

/* A transport hands over one flat message: a large payload is copied behind its frame, as a socket
 * would. */
static uint8_t flat[(256 + 256 + 1) << 10];

static void carry(struct tether__lane *from, struct tether__lane *to, bool ack, size_t *delivered)
{
    struct tether__lane_out out;
    while (tether__lane_pull(from, ack, &out)) {
        struct tether__slice batch = out.pieces[0];
        if (out.n_pieces == 2) {
            memcpy(flat, out.pieces[0].data, out.pieces[0].len);
            memcpy(flat + out.pieces[0].len, out.pieces[1].data, out.pieces[1].len);
            batch = (struct tether__slice){flat, out.pieces[0].len + out.pieces[1].len, NULL};
        }
        receive(to, batch, delivered);
        for (size_t i = 0; i < out.n_pieces; i++)
            tether__slice_release(out.pieces[i]);
    }
}

static void run(const struct row *row, long batches)
{
    static uint8_t payload[1 << 20];
    static const uint8_t header[] =
        "\x08\x90\x4e\x12\x03"
        "add"
        "\x18\x88\x27"; /* a small Call */
    struct tether__lane a, b;
    tether__lane_init(&a, &tether__lane_default_limits);
    tether__lane_init(&b, &tether__lane_default_limits);
    must(tether__lane_connected(&a, 0) == TETHER_OK && tether__lane_connected(&b, 0) == TETHER_OK);
    struct tether__slice slice = {payload, row->payload, NULL};
    size_t delivered = 0;
    for (long i = 0; i < batches; i++) {
        for (size_t n = 0; n < row->batch; n++)
            must(tether__lane_send(&a, TETHER__FRAME_CALL,
                                   tether_bytes_of(header, sizeof header - 1), slice,
                                   0) == TETHER_OK);
        carry(&a, &b, false, &delivered);
        carry(&b, &a, true, &delivered);
    }
    must(delivered == (size_t)batches * row->batch && a.unacked_bytes == 0);
    tether__lane_fini(&a);
    tether__lane_fini(&b);
}

static struct bench_spread measure(const struct row *row, int rounds)
{
    long batches = (long)(40000000 / (row->payload + 200) / row->batch / 20) + 1;
    double ns[BENCH_MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        double start = bench_now_s();
        run(row, batches);
        ns[i] = (bench_now_s() - start) * 1e9 / (double)batches / (double)row->batch;
    }
    return bench_spread_of(ns, (size_t)rounds);
}

static void report(const char *figure, const char *who, const char *unit, struct bench_spread value)
{
    bench_result(&(struct bench_result){
        .figure = figure, .placement = "-", .who = who, .unit = unit, .value = value});
}

int main(int argc, char **argv)
{
    bool counted = argc == 3 && argv[1][0] != '-'; /* lib/counts.h */
    for (size_t i = 0; counted && i < TETHER__ARRAY_LEN(rows); i++)
        if (strcmp(argv[1], rows[i].name) == 0)
            run(&rows[i], strtol(argv[2], NULL, 10));
    if (counted)
        return 0;
    struct bench_options options = {.only = "", .rounds = 15, .seconds = 1};
    bench_options_read(argc, argv, &options);
    bench_results_open("lane", options.tsv);
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        bench_progress(i, TETHER__ARRAY_LEN(rows), rows[i].name);
        struct bench_spread ns = measure(&rows[i], options.rounds);
        double instructions = bench_instructions(argv[0], rows[i].name, 20) / (double)rows[i].batch;
        report("time of a message", rows[i].name, "ns", ns);
        if (instructions > 0)
            report("instructions of a message", rows[i].name, "", bench_single(instructions));
        if (strcmp(rows[i].name, "64B-by-64") == 0)
            bench_goal(&(struct bench_verdict){.text = "64 B, packed by 64; the best round",
                                               .placement = "-",
                                               .figure = "time of a message",
                                               .who = rows[i].name,
                                               .unit = "ns",
                                               .value = bench_single(ns.lowest),
                                               .limit = 200,
                                               .at = 200});
    }
    bench_results_close();
    return 0;
}
