/* What a message costs in the lane: queued at one end, pulled, received and delivered at the other,
 * acknowledged. Both ends together, no transport in between (what was pulled is received as it is).
 *
 * The goal for 64 bytes, 64 messages packed into a batch: less than 200 ns a message. From 4 KiB on
 * most of it is the copy that stands for the socket.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/instructions.h"
#include "rpc/lane.h"

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

static tether_status deliver(void *userdata, const struct tether__inbound *message)
{
    (void)message;
    ++*(size_t *)userdata;
    return TETHER_OK;
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
        must(tether__lane_receive(to, batch, deliver, delivered, NULL) == TETHER_OK);
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
                                   NULL) == TETHER_OK);
        carry(&a, &b, false, &delivered);
        carry(&b, &a, true, &delivered);
    }
    must(delivered == (size_t)batches * row->batch && a.unacked_bytes == 0);
    tether__lane_fini(&a);
    tether__lane_fini(&b);
}

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static double best_ns(const struct row *row)
{
    long batches = (long)(40000000 / (row->payload + 200) / row->batch / 20) + 1;
    double best = 1e18;
    for (int i = 0; i < 15; i++) {
        double start = now_ns();
        run(row, batches);
        double took = (now_ns() - start) / (double)batches / (double)row->batch;
        best = took < best ? took : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 3 && i < TETHER__ARRAY_LEN(rows); i++)
        if (strcmp(argv[1], rows[i].name) == 0)
            run(&rows[i], strtol(argv[2], NULL, 10));
    if (argc == 3)
        return 0;
    puts("message            ns (best of 15)   instructions");
    for (size_t i = 0; i < TETHER__ARRAY_LEN(rows); i++) {
        double instructions = bench_instructions(argv[0], rows[i].name, 20);
        printf("%-16s %17.1f %14.0f\n", rows[i].name, best_ns(&rows[i]),
               instructions / (double)rows[i].batch);
    }
    return 0;
}
