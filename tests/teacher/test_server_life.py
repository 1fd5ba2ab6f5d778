"""How a gRPC server of a teacher begins and ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from edl.errors import (
    AddressInUse,
    UsageError,
)
from edl.proto.security import Gate
from edl.teacher.config import ServerConfig
from edl.teacher.front.server import Server
from edl.teacher.identity import Identity
from edl.teacher.metrics import TeacherMetrics
from edl.teacher.servicer import Servicer
from edl.teacher.traffic import Traffic
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.fakes import FakeLabeller


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_stop_lets_what_is_being_answered_finish() -> None:
    bench = Bench()
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(bench.infer)
        assert inside.wait(WAIT_S)
        stopped = pool.submit(bench.server.stop, WAIT_S)
        go.set()
        assert len(asked.result(WAIT_S).outputs["sum"]) == 3
        stopped.result(WAIT_S)
    bench.close()


def test_a_stop_does_not_wait_for_a_model_that_hangs() -> None:
    bench = Bench()
    inside, go = threading.Event(), threading.Event()

    def hang() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = hang
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(bench.infer)
        assert inside.wait(WAIT_S)
        stopped = pool.submit(bench.server.stop, 0.0)
        try:
            stopped.result(WAIT_S / 4)
            with pytest.raises(grpc.RpcError):
                asked.result(WAIT_S / 4)
        finally:
            go.set()
    bench.close()


def test_a_server_that_ends_by_itself_is_not_taken_for_a_live_one() -> None:
    ended = threading.Event()
    server = another_server(on_ended=ended.set)
    server.start()
    asyncio.run_coroutine_threadsafe(server._server.stop(0), server._loop).result(WAIT_S)
    assert ended.wait(WAIT_S)
    server.stop(0)


def test_a_server_that_is_stopped_has_not_ended_by_itself() -> None:
    ended = threading.Event()
    server = another_server(on_ended=ended.set)
    server.start()
    server.stop(0)
    assert not ended.is_set()


def another_server(on_ended: Callable[[], None] = lambda: None, **config: Any) -> Server:
    servicer = Servicer(Identity("m", "t", 1), FakeLabeller(), Traffic())
    return Server(ServerConfig(**config), servicer, Gate(None), TeacherMetrics(), on_ended)


def test_a_port_in_use_is_said_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"another process listens on 127.0.0.1:{port}"):
            another_server(port=port)


def test_two_servers_never_share_a_port(bench: Bench) -> None:
    with pytest.raises(AddressInUse):
        another_server(port=bench.server.port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:0"):
        another_server(host="192.0.2.1")
