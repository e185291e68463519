"""PyTorch RPC and its remote references as a contestant (bench/lib/contestant.h).

    torch_rpc.py CLIENT_CPU SERVER_CPU

Three workers in a process each: w0 asks, w1 serves and owns, w2 is passed references. TensorPipe
goes over TCP: its shared memory polls without a pause and would take the CPU from everybody else,
whoever's turn it is.

References: create_drop lets go of each without waiting, and one call at the end makes sure that all
have been made; what is fetched is done one at a time; what is passed on, one at a time and 64 at a
time.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import torch.distributed.rpc as rpc

WINDOW = 256
PR_SET_PDEATHSIG = 1


class Object:
    def __init__(self):
        self.value = b"eightby"


def echo(data):
    return data


def nothing():
    return None


def hold(reference):
    """Receives a reference and lets it go."""
    return None


def join(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, _transports=["uv"])
    rpc.init_rpc("w%d" % rank, rank=rank, world_size=3, rpc_backend_options=options)


def median_us(once, seconds):
    times = []
    begin = last = time.perf_counter()
    while last - begin < seconds:
        once()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return sorted(times)[len(times) // 2] * 1e6


def rate(some, seconds):
    n = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        n += some()
    return n / (time.perf_counter() - begin)


def calls(size):
    data = b"x" * size
    return lambda seconds: median_us(lambda: rpc.rpc_sync("w1", echo, (data,)), seconds)


def small_call():
    rpc.rpc_sync("w1", echo, (b"x" * 64,))
    return 1


def outstanding(start, seconds):
    n, futures = 0, []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        futures.append(start())
        if len(futures) >= 64:
            futures.pop(0).wait()
            n += 1
    for future in futures:
        future.wait()
        n += 1
    return n / (time.perf_counter() - begin)


def create_drop():
    for _ in range(WINDOW):
        rpc.remote("w1", Object)
    rpc.rpc_sync("w1", nothing)
    return WINDOW


def create_fetch_drop():
    rpc.remote("w1", Object).to_here()
    return 1


def create_and_pass():
    return rpc.rpc_async("w2", hold, (rpc.remote("w1", Object),))


def create_pass_drop():
    create_and_pass().wait()
    return 1


SKILLS = {
    "sync_64": calls(64),
    "sync_null": lambda s: median_us(lambda: rpc.rpc_sync("w1", nothing), s),
    "sync_64k": calls(64 << 10),
    "sync_1m": calls(1 << 20),
    "rate_64": lambda s: rate(small_call, s),
    "async_64": lambda s: outstanding(lambda: rpc.rpc_async("w1", echo, (b"x" * 64,)), s),
    "create_drop": lambda s: rate(create_drop, s),
    "create_fetch_drop": lambda s: rate(create_fetch_drop, s),
    "create_pass_drop": lambda s: rate(create_pass_drop, s),
    "create_pass_drop_64": lambda s: outstanding(create_and_pass, s),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def client(client_cpu, server_cpu):
    port = free_port()
    os.sched_setaffinity(0, {client_cpu})
    servers = [
        subprocess.Popen(
            [sys.executable, __file__, "serve", str(rank), str(port), str(server_cpu)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # they mourn each other at the end
        )
        for rank in (1, 2)
    ]
    join(0, port)
    for skill in SKILLS.values():
        skill(0.05)
    print("ready", flush=True)
    for line in sys.stdin:
        figure, seconds = line.split()
        skill = SKILLS.get(figure)
        print("%.6f" % skill(float(seconds)) if skill else "-", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for server in servers:
        server.kill()
        server.wait()
    os._exit(0)  # without the others there is no orderly end


def serve(rank, port, cpu):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, {cpu})
    join(rank, port)
    rpc.shutdown()  # waits for the client, who never comes


if __name__ == "__main__":
    # Functions go over the wire by name: they must be in a module that all processes can import.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import torch_rpc

    if sys.argv[1] == "serve":
        torch_rpc.serve(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        torch_rpc.client(int(sys.argv[1]), int(sys.argv[2]))
