#!/usr/bin/env python3
"""Calls a function of a Tether worker from Python, with nothing but grpcio.

    python3 python_client.py 127.0.0.1:PORT [text]

PORT is what `python_client` says that it serves on. The two messages are so small that they are
written by hand here; `protoc --python_out` on protos/rpc.proto makes them as well.
"""
import sys

import grpc


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, data):
    """A protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def unary_call(function, payload):
    """tether.UnaryCall: function = 1, payload = 15."""
    return field(1, function.encode()) + field(15, payload)


def unary_reply(message):
    """The payload (field 15) of a tether.UnaryReply, which has no other field."""
    if not message:
        return b""
    at, shift, size = 1, 0, 0
    while True:
        size |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 128:
            return message[at : at + size]


def main():
    text = sys.argv[2] if len(sys.argv) > 2 else "hello from the other side"
    with grpc.insecure_channel(sys.argv[1]) as channel:
        call = channel.unary_unary(
            "/tether.Worker/Call",
            request_serializer=lambda payload: unary_call("count_words", payload),
            response_deserializer=unary_reply,
        )
        print(f"'{text}' has {call(text.encode(), timeout=30).decode()} words")
        try:
            call(b"  ", timeout=30)
        except grpc.RpcError as error:
            print(f"'  ': {error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
