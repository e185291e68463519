"""PyTorch's TCPStore, client and server its own, for store_bench: prints "figure<tab>value" lines.

    pytorch.py CLIENT_CPU SERVER_CPU

Its set is not acknowledged; the acknowledged form is a set and a get.
"""

import multiprocessing as mp
import os
import statistics
import sys
import time

import torch.distributed as dist

TURN_S = 0.02
TURNS = 50
WAKES = 200


def connect(port):
    return dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)


def serve(cpu, ports):
    os.sched_setaffinity(0, {cpu})
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ports.put(store.port)
    time.sleep(3600)


def rate(call):
    """Returns calls per second in the best tenth of short turns."""
    rates = []
    for _ in range(TURNS):
        n, start = 0, time.perf_counter()
        while time.perf_counter() - start < TURN_S:
            call()
            n += 1
        rates.append(n / (time.perf_counter() - start))
    return sorted(rates)[int(0.9 * (TURNS - 1))]


def sleep_and_wake(port, figures):
    store = connect(port)
    waits = []
    for i in range(WAKES):
        sent = float(store.get("bell%d" % i))
        waits.append((time.monotonic() - sent) * 1e6)
    figures.put(statistics.median(waits))


def main(client_cpu, server_cpu):
    ports, figures = mp.Queue(), mp.Queue()
    server = mp.Process(target=serve, args=(server_cpu, ports), daemon=True)
    server.start()
    port = ports.get()
    os.sched_setaffinity(0, {client_cpu})
    store = connect(port)
    store.set("key", "value")

    def set_with_ack():
        store.set("key", "value")
        store.get("key")

    print("set with ack, 1 client\t%f" % rate(set_with_ack))
    print("get, 1 client\t%f" % rate(lambda: store.get("key")))
    print("add, 1 client\t%f" % rate(lambda: store.add("counter", 1)))

    sleeper = mp.Process(target=sleep_and_wake, args=(port, figures))
    sleeper.start()
    for i in range(WAKES):
        time.sleep(0.0015)
        store.set("bell%d" % i, "%.9f" % time.monotonic())
    print("set to wake\t%f" % figures.get())
    sleeper.join()
    server.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
