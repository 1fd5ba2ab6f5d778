"""How much a service manager takes: sizes, rates, streams and calls at once."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from edl.coordinator.service.call_guard import CallGuard, ConcurrencyLimit, ManagerLimits, TooLarge
from edl.coordinator.service.operator_handlers import UnaryHandlers
from edl.proto.security.access_control import AccessControl
from edl.runtime.errors import RateLimited
from edl.scheduler.admission import RateLimit
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.waiting import DEADLINE_S, wait_until

from .calls import ask, assert_refused, end_of, next_assignment, open_stream, report, subscribe


def test_a_report_or_message_that_is_too_large_is_refused(mesh: Served) -> None:
    large = report(teachers=["t" * 100] * 11_000)
    assert subscribe(mesh.address, large)[0] == "RESOURCE_EXHAUSTED"
    assert subscribe(mesh.address, report(), large)[0] == "RESOURCE_EXHAUSTED"
    assert mesh.refused == ["too_large", "too_large"]
    mesh.refused.clear()
    ended = ask(mesh.address, "Status", b"\x0a" * (9 << 20))  # gRPC itself refuses it
    assert_refused(ended, "RESOURCE_EXHAUSTED", "larger than max")
    wait_until(lambda: mesh.refused == ["malformed"])
    limits = ManagerLimits(message_bytes=3)
    limits.check_size(b"123")
    with pytest.raises(TooLarge, match=r"larger than max \(4 vs\. 3 bytes\)"):
        limits.check_size(b"1234")


def test_garbage_on_the_port_harms_nobody(mesh: Served, capfd: pytest.CaptureFixture[str]) -> None:
    host, port = mesh.address.split(":")
    for garbage in (
        b"GET / HTTP/1.0\r\n\r\n",
        random.Random(7).randbytes(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(garbage + os.urandom(512))
    assert ask(mesh.address, "Status") == ("OK", "")
    assert "Traceback" not in capfd.readouterr().err


def test_who_reports_too_often_is_refused() -> None:
    with served(limits=ManagerLimits(reports=RateLimit(0.1, 5.0))) as mesh:
        ended = subscribe(mesh.address, *[report()] * 10)
        assert_refused(ended, "RESOURCE_EXHAUSTED", "reports per second")
        assert len(mesh.manager.reports) == 6  # the first, and a burst
        assert mesh.refused == ["rate_limited"]


@pytest.mark.parametrize("method", ["Subscribe", "Status", "Watch"])
def test_a_call_that_never_says_what_it_is_about_is_ended(method: str) -> None:
    with served(limits=ManagerLimits(first_report_s=0.2)) as mesh:
        over = threading.Event()
        channel: Any
        with grpc.insecure_channel(mesh.address) as channel:
            stream = channel.stream_stream(f"/edl.coordinator.v1.Coordinator/{method}")
            ended = end_of(stream(iter(lambda: over.wait(DEADLINE_S), True), timeout=DEADLINE_S))
            over.set()
        assert_refused(ended, "INVALID_ARGUMENT", "0.2 s")
        assert mesh.refused == ["malformed"]


def test_one_credential_may_hold_so_many_streams_and_the_manager_so_many() -> None:
    limits = ManagerLimits(streams=3, streams_per_principal=2)
    with served(limits=limits) as mesh:
        with open_stream(mesh.address, report(student_id="j/0")) as (first, _):
            next_assignment(first)
            with open_stream(mesh.address, report(student_id="j/1")) as (second, _):
                next_assignment(second)
                ended = subscribe(mesh.address, report(student_id="j/2"))
                assert_refused(ended, "RESOURCE_EXHAUSTED", "one credential")
            wait_until(lambda: len(mesh.manager.ended) == 1)
            with open_stream(mesh.address, report(student_id="j/2")) as (third, _):
                next_assignment(third)  # a place is free again
        assert mesh.refused == ["rate_limited"]
    with served(limits=ManagerLimits(streams=0)) as mesh:
        ended = subscribe(mesh.address, report())
        assert_refused(ended, "RESOURCE_EXHAUSTED", "this service manager")
        assert mesh.refused == ["overloaded"]


def test_calls_on_top_of_those_that_are_answered_are_turned_away() -> None:
    with served(limits=ManagerLimits(calls=1)) as mesh:
        mesh.manager.answering.clear()
        ended: list[tuple[str, str]] = []
        first = threading.Thread(target=lambda: ended.append(ask(mesh.address, "Status")))
        first.start()
        wait_until(lambda: len(mesh.manager.asked) == 1)
        assert ask(mesh.address, "Status")[0] == "RESOURCE_EXHAUSTED"
        mesh.manager.answering.set()
        first.join(DEADLINE_S)
        assert ended == [("OK", "")]
        assert mesh.refused == ["overloaded"]


def test_nothing_is_kept_of_who_has_left() -> None:
    class Principal(str):
        """Whose end can be seen."""

    limit = ConcurrencyLimit("streams", most=2, most_each=1)
    principal = Principal("p")
    with limit.hold(principal), pytest.raises(RateLimited), limit.hold(principal):
        pass
    gone = weakref.ref(principal)
    del principal
    assert gone() is None
    assert limit.taken == 0


class Deaf:
    """The context of a caller that reads nothing."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, Any]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        raise ConnectionAbortedError(code.name, details)


def test_a_caller_that_does_not_read_its_reply_is_aborted(mesh: Served) -> None:
    limits = ManagerLimits(write_s=0.1)
    guard = CallGuard(AccessControl(None, mesh.refused.append), limits, mesh.refused.append)
    handlers = UnaryHandlers(mesh.manager, mesh.registry, guard, limits).handlers()

    async def requests() -> AsyncIterator[bytes]:
        yield b""

    handle: Any = handlers["Status"].stream_stream
    call = handle(requests(), Deaf())
    with pytest.raises(ConnectionAbortedError, match="does not read"):
        asyncio.run(asyncio.wait_for(call, DEADLINE_S))
