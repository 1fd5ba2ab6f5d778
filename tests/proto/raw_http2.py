"""HTTP/2 and gRPC, written on the socket itself."""

from __future__ import annotations

import contextlib
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _INITIAL_WINDOW = 1, 4, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(path: bytes, message: bytes, window: int = 65535) -> bytes:
    """All that a client writes for one call, from the preface on; it reads `window` bytes of it."""
    return (
        PREFACE
        + frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, window))
        + frame(_HEADERS, _END_HEADERS, 1, _headers(path))
        + frame(_DATA, _END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
    )


def _headers(path: bytes) -> bytes:
    """HPACK without tables: each header as a literal."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"localhost",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    return b"".join(
        b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in fields.items()
    )


def answer(address: str, data: bytes) -> bytes:
    """What a server says to `data`, until it closes or has answered a whole call."""
    host, _, port = address.rpartition(":")
    said = b""
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        with contextlib.suppress(OSError):  # it may close the connection at once
            connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while b"grpc-status" not in said and (more := connection.recv(65536)):
                said += more
    return said
