"""What a hostile client writes on the socket itself: HTTP/2 and gRPC, bent at any byte."""

from __future__ import annotations

import contextlib
import socket
import struct

from hypothesis import strategies as st

from edl.tests.hostile.inputs import EDITS, bend

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 4, 6, 7, 9
_END_STREAM, _END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(path: bytes, message: bytes) -> bytes:
    """All that a client writes for one call, from the preface on."""
    return (
        PREFACE
        + frame(_SETTINGS, 0, 0, b"")
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


def writings(path: bytes, message: bytes) -> st.SearchStrategy[bytes]:
    """What is written before the connection is dropped."""
    whole = call(path, message)
    claims = struct.pack(">BI", 0, (1 << 32) - 1)
    odd = [
        whole[:-1],  # the last byte never comes
        whole.replace(struct.pack(">BI", 0, len(message)), struct.pack(">BI", 9, len(message))),
        PREFACE + frame(_SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff"),
        PREFACE + frame(_PING, 0, 0, bytes(8)) * 50,
        PREFACE + frame(_GOAWAY, 0, 0, bytes(8)),
        PREFACE + frame(_HEADERS, 0, 1, _headers(path)) + frame(_CONTINUATION, 0, 1, b"\x00") * 50,
        PREFACE + frame(_HEADERS, _END_HEADERS, 1, b"\xff" * 200),
        call(b"/\xe8\xfd", b""),  # which ends a server of gRPC's that reads it as UTF-8
        call(path[:-1], message),
        PREFACE + frame(_HEADERS, _END_HEADERS, 0, _headers(path)),
        call(path, b"")[:-5] + claims,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # the beginning of TLS
    ]
    bent = st.builds(bend, st.just(whole), EDITS)
    noise = st.builds(lambda start, more: start + more, st.sampled_from([b"", PREFACE]), _NOISE)
    kinds = [bent, bent, bent, noise, st.sampled_from(odd)]
    return st.sampled_from(kinds).flatmap(lambda kind: kind)


_NOISE = st.binary(max_size=200)


def write(address: str, data: bytes) -> socket.socket:
    """A connection over which `data` was written; the server may have closed it by then."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    with contextlib.suppress(OSError):
        connection.sendall(data)
    return connection


def answer(address: str, data: bytes) -> bytes:
    """What a server says to `data`, until it closes or has answered a whole call."""
    with write(address, data) as connection:
        said = b""
        with contextlib.suppress(ConnectionError):
            while b"grpc-status" not in said and (more := connection.recv(65536)):
                said += more
        return said


def rest(connection: socket.socket) -> bytes:
    """What is said until the other side closes the connection."""
    said = b""
    while more := connection.recv(65536):
        said += more
    return said
