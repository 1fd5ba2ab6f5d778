"""Calls to a service manager as a client of another maker would make them: raw bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from edl.proto import coordinator_pb2 as pb
from edl.proto.protocols import PROTOCOL_VERSION
from edl.proto.security.client_connections import open_channel
from edl.proto.security.credentials import ClientSecurity
from edl.tests.waiting import DEADLINE_S

SERVICE = "edl.coordinator.v1.Coordinator"

Metadata = Sequence[tuple[str, str]]


def report(**fields: Any) -> pb.StudentReport:
    """A good report of student j/0 of service s, but for `fields`."""
    known = {"service": "s", "student_id": "j/0", "incarnation": 1, "want": 1}
    return pb.StudentReport(**{"protocol_version": PROTOCOL_VERSION, **known, **fields})


@contextmanager
def open_stream(
    address: str,
    *sent: Message | bytes,
    metadata: Metadata = (),
    once: threading.Event | None = None,
    security: ClientSecurity | None = None,
) -> Iterator[tuple[Any, threading.Event]]:
    """A call of Subscribe that has sent these reports, and the event that closes our side.

    The reports are sent at once, or when `once` is set.
    """
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        if once is not None:
            once.wait(DEADLINE_S)
        yield from (each if isinstance(each, bytes) else each.SerializeToString() for each in sent)
        over.wait(DEADLINE_S)

    channel: Any
    with open_channel(address, security) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/Subscribe")
        call = stream(requests(), timeout=DEADLINE_S, metadata=metadata)
        try:
            yield call, over
        finally:
            call.cancel()  # first: the end of our side alone would be a clean one
            over.set()


def next_assignment(call: Any) -> pb.Assignment:
    return pb.Assignment.FromString(next(call))


def end_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as error:
        for _ in call:
            pass
    return _code(error.value)


def subscribe(address: str, *sent: Message | bytes, metadata: Metadata = ()) -> tuple[str, str]:
    with open_stream(address, *sent, metadata=metadata) as (call, _):
        return end_of(call)


def assert_refused(ended: tuple[str, str], code: str, words: str) -> None:
    assert ended[0] == code, ended
    assert words in ended[1], ended


def ask(
    address: str, method: str, request: Message | bytes = b"", *, metadata: Metadata = ()
) -> tuple[str, str]:
    """How a call of one message ends: ("OK", "") or its code and details."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    channel: Any
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=DEADLINE_S, metadata=metadata)
        except grpc.RpcError as error:
            return _code(error)
    return "OK", ""


def _code(error: BaseException) -> tuple[str, str]:
    assert isinstance(error, grpc.Call)
    return error.code().name, error.details() or ""
