"""The Python side of python_grpc_test: what any gRPC client can do with a worker.

    python_grpc.py rpc.proto ADDRESS TOKEN

Debian's python3-grpcio, and messages from our own .proto file, which the compiler that the build has reads.
"""
import os
import subprocess
import sys
import tempfile
import threading
import types

import grpc
from google.protobuf import descriptor_pb2, message_factory


def messages(proto):
    """The messages of `proto` by their names."""
    folder, name = os.path.split(os.path.abspath(proto))
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc-c", f"-I{folder}", f"--descriptor_set_out={out.name}", name], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    found = message_factory.GetMessages(files.file)
    return types.SimpleNamespace(**{key.rpartition(".")[2]: found[key] for key in found})


proto, address, token = sys.argv[1:]
pb = messages(proto)
channel = grpc.insecure_channel(address)
raw_call = channel.unary_unary(
    "/tether.Worker/Call",
    request_serializer=pb.UnaryCall.SerializeToString,
    response_deserializer=pb.UnaryReply.FromString,
)


def call(function, payload, secret=token, metadata=(), timeout=60):
    request = pb.UnaryCall(function=function, payload=payload)
    bearer = (("authorization", f"Bearer {secret}"),) if secret else ()
    return raw_call(request, timeout=timeout, metadata=tuple(metadata) + bearer).payload


def fails(code, tether_status, text, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except grpc.RpcError as error:
        assert error.code() == code, error
        assert text in error.details(), error
        trailing = dict(error.trailing_metadata())
        assert trailing.get("tether-status") == tether_status, trailing
    else:
        raise AssertionError(f"{args} did not fail")


# Values of all kinds of lengths, there and back.
for size in (0, 1, 100, 70000, 300000):
    payload = os.urandom(size)
    assert call("echo", payload) == payload
assert call("upper", b"shout") == b"SHOUT"

# The token goes as metadata.
fails(grpc.StatusCode.UNAUTHENTICATED, "17", "token", "upper", b"x", secret="wrong")
fails(grpc.StatusCode.UNAUTHENTICATED, "17", "token", "upper", b"x", secret="")

# Errors: ours, and the function's own.
fails(grpc.StatusCode.NOT_FOUND, "11", "nonsense", "nonsense", b"")
fails(grpc.StatusCode.INVALID_ARGUMENT, "2", "no such beast: ünicorn", "fail", "ünicorn".encode())

# A call that outlasts its caller's patience; the worker serves on.
try:
    call("sleep", b"", timeout=0.2)
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
else:
    raise AssertionError("sleep did not time out")

# Many at once, from many threads.
wrong = []


def many(name):
    for i in range(100):
        text = f"{name}-{i}"
        if call("upper", text.encode()) != text.upper().encode():
            wrong.append(text)


threads = [threading.Thread(target=many, args=(f"thread{n}",)) for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong

# The standard health check: SERVING is 1. And methods that are not there.
identity = {"request_serializer": bytes, "response_deserializer": bytes}
check = channel.unary_unary("/grpc.health.v1.Health/Check", **identity)
assert check(b"", timeout=60) == b"\x08\x01"
for method in ("/grpc.health.v1.Health/Watch", "/tether.Worker/Nonsense"):
    try:
        channel.unary_unary(method, **identity)(b"", timeout=60)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    else:
        raise AssertionError(f"{method} is there")
