"""The PyTorch side of torch_store_test: one role a process.

    torch_store.py client PORT              every call of its TCPStore on the server at PORT
    torch_store.py rank PORT RANK SIZE      a process group over it, and an all_reduce
    torch_store.py serve                    a TCPStore server; prints "port N", ends with its input

Ends with exit code 0 and the word "passed" if all is as PyTorch's own server would have it.
"""

import datetime
import sys
import threading

import torch
import torch.distributed as dist

HOST = "127.0.0.1"
LIMIT = datetime.timedelta(seconds=60)


def connect(port):
    return dist.TCPStore(HOST, port, None, False, timeout=LIMIT, wait_for_workers=False)


def raises(what, call):
    try:
        call()
    except RuntimeError as error:
        assert what in str(error), error
    else:
        raise AssertionError("no error, but '%s' was due" % what)


def client(port):
    store = connect(port)
    assert store.num_keys() == 0

    store.set("key", "value")
    assert store.get("key") == b"value"
    store.set("key", b"\x00\xff any bytes")
    assert store.get("key") == b"\x00\xff any bytes"
    store.set("empty", "")
    assert store.get("empty") == b""
    large = bytes(range(256)) * 36864  # 9 MiB: beyond what later versions take
    store.set("large", large)
    assert store.get("large") == large

    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.get("n") == b"-2"

    assert store.compare_set("cas", "wrong", "x") == b"wrong"  # absent: says what was expected
    assert store.compare_set("cas", "", "one") == b"one"
    assert store.compare_set("cas", "wrong", "two") == b"one"
    assert store.compare_set("cas", "one", "two") == b"two"

    assert store.num_keys() == 5
    assert store.delete_key("large")
    assert not store.delete_key("large")
    assert store.num_keys() == 4

    # A wait that is in time, and one that is not; after it the connection is still in step, which
    # with PyTorch's own server it is not (num_keys was 768).
    other = connect(port)
    later = threading.Timer(0.3, lambda: other.set("later", "came"))
    later.start()
    store.wait(["later"])
    assert store.get("later") == b"came"
    later.join()
    raises("Timeout", lambda: store.wait(["never"], datetime.timedelta(seconds=1)))
    assert store.num_keys() == 5
    assert store.add("n", 2) == 0
    adder = threading.Timer(0.3, lambda: other.add("counted", 1))
    adder.start()
    assert store.get("counted") == b"1"
    adder.join()

    prefixed = dist.PrefixStore("a", dist.PrefixStore("b", store))
    prefixed.set("key", "below")
    assert store.get("b/a/key") == b"below"

    # num_keys() in a world of a fixed size.
    joined = dist.TCPStore(HOST, port, 2, False, timeout=LIMIT, wait_for_workers=True)
    again = dist.TCPStore(HOST, port, 2, False, timeout=LIMIT, wait_for_workers=True)
    assert joined.get("key") == again.get("key") == store.get("key")
    assert store.num_keys() == 8  # key empty n cas later counted b/a/key init/


def rank(port, my_rank, size):
    store = connect(port)
    dist.init_process_group("gloo", store=store, rank=my_rank, world_size=size, timeout=LIMIT)
    tensor = torch.full((1000,), float(my_rank + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(size * (size + 1) / 2).all(), tensor
    dist.barrier()
    parts = [None] * size
    dist.all_gather_object(parts, "rank %d" % my_rank)
    assert parts == ["rank %d" % i for i in range(size)]
    dist.destroy_process_group()


def serve():
    store = dist.TCPStore(HOST, 0, None, True, timeout=LIMIT, wait_for_workers=False)
    print("port %d" % store.port, flush=True)
    threading.Event().wait()  # until it is killed


if __name__ == "__main__":
    role, args = sys.argv[1], [int(arg) for arg in sys.argv[2:]]
    {"client": client, "rank": rank, "serve": serve}[role](*args)
    print("passed")
