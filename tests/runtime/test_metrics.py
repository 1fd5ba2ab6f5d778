"""The metrics server: what it serves, whom it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import errno
import http.client
import os
import random
import socket
import socketserver
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from threading import Event, Semaphore
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.registry import Collector

from edl.runtime import metrics
from edl.runtime.addresses import split_listen
from edl.runtime.errors import AddressInUse, Forbidden, Unauthenticated, UsageError
from edl.runtime.metrics import MetricsServer
from edl.tests.waiting import DEADLINE_S


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    monkeypatch.setattr(metrics, "_TIMEOUT_S", DEADLINE_S)  # no pause of a test looks like silence
    registry = CollectorRegistry()
    Counter("edl_test_turns", "Turns of a wheel.", registry=registry).inc(3)
    return registry


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    server = MetricsServer("0", registry)
    yield server
    server.close()


def scrape(
    server: MetricsServer, token: str = "", method: str = "GET", path: str = "/metrics"
) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with closing(http.client.HTTPConnection(server.address, timeout=DEADLINE_S)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def open_socket(server: MetricsServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def test_it_pauses_while_there_is_no_descriptor_for_a_connection(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays ready to be accepted, so that waiting for it takes no time."""
    calls: list[str] = []
    accept = socketserver.TCPServer.get_request

    def get_request(listener: socketserver.TCPServer) -> object:
        calls.append("accept")
        if len(calls) < 5:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    monkeypatch.setattr(socketserver.TCPServer, "get_request", get_request)
    clock = SimpleNamespace(sleep=lambda _: calls.append("pause"), monotonic=time.monotonic)
    monkeypatch.setattr(metrics, "time", clock)
    assert scrape(server)[0] == 200
    assert calls[:5] == ["accept", "pause", "accept", "pause", "accept"]


def test_it_serves_its_own_registry_on_loopback(server: MetricsServer) -> None:
    assert server.address.startswith("127.0.0.1:")
    status, text = scrape(server)
    assert (status, "edl_test_turns_total 3.0" in text) == (200, True)
    assert "python_info" not in text  # of the global registry
    for method in ("POST", "PUT", "DELETE"):
        assert scrape(server, method=method)[0] == 501, "only reading is possible"


def test_it_ends_at_once_with_connections_open_and_more_than_once(
    registry: CollectorRegistry,
) -> None:
    server = MetricsServer("0", registry)
    with open_socket(server) as silent:
        assert scrape(server)[0] == 200  # so the silent one has been accepted as well
        server.close()
        assert silent.recv(1) == b""
    server.close()
    with pytest.raises(OSError):
        open_socket(server)


def test_what_cannot_be_listened_on_is_refused(
    server: MetricsServer, registry: CollectorRegistry
) -> None:
    with pytest.raises(AddressInUse, match=server.address):
        MetricsServer(server.address, registry)
    for listen in ("", "x", "host:", "127.0.0.1:70000", "-1", "1.5"):
        with pytest.raises(UsageError):
            MetricsServer(listen, registry)
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:0"):
        MetricsServer("192.0.2.1:0", registry, insecure=True)
    with pytest.raises(UsageError, match=r"cannot listen on a\.\.b:0: invalid name"):
        MetricsServer("a..b:0", registry, insecure=True)
    for others in ("0.0.0.0:0", "somewhere.example:0"):
        with pytest.raises(UsageError, match="--insecure"):
            MetricsServer(others, registry)
    MetricsServer("0.0.0.0:0", registry, insecure=True).close()


def test_hosts_and_ports_are_told_apart() -> None:
    assert split_listen("9100") == split_listen(":9100") == ("127.0.0.1", 9100)
    assert split_listen("[::1]:0") == ("::1", 0)
    assert split_listen("node.example:80") == ("node.example", 80)


def test_with_a_gate_a_scrape_needs_its_token_and_health_none(registry: CollectorRegistry) -> None:
    def authorize(token: str) -> None:
        if token == "closesesame":
            raise Forbidden("it is for another role")
        if token != "opensesame":
            raise Unauthenticated("no such token")

    well = [False]
    with closing(
        MetricsServer("0.0.0.0:0", registry, authorize=authorize, ready=lambda: well[0])
    ) as server:
        assert scrape(server) == scrape(server, "wrong") == (401, "")
        assert scrape(server, "closesesame") == (403, "")
        status, text = scrape(server, "opensesame")
        assert (status, "edl_test_turns_total" in text) == (200, True)
        assert scrape(server, path="/health/live") == (200, "")
        assert scrape(server, path="/health/ready") == (503, "")
        well[0] = True
        assert scrape(server, path="/health/ready?verbose") == (200, "")
        assert scrape(server, path="/health") == (401, "")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\r\n\r\n",
        b"GET",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
        b"GET " + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /?name[]=%ff%00 HTTP/1.1\r\nAccept: \xff\r\n\r\n",
        random.Random(7).randbytes(4096),
    ],
    ids=lambda garbage: repr(garbage[:12]),
)
def test_garbage_does_not_disturb_other_clients(server: MetricsServer, garbage: bytes) -> None:
    with open_socket(server) as connection, suppress(OSError):  # it need not hear us out
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    assert scrape(server)[0] == 200


def test_silent_clients_are_many_only_for_a_while(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(metrics, "_MAX_SCRAPES", 4)
    with closing(MetricsServer("0", registry)) as server, ExitStack() as open_sockets:
        silent = [open_sockets.enter_context(open_socket(server)) for _ in range(4 + 5)]
        for connection in silent:  # those that came on top at once, the others when time is up
            assert connection.recv(1) == b""
        monkeypatch.setattr(metrics, "_TIMEOUT_S", DEADLINE_S)
        assert scrape(server)[0] == 200


def test_idle_connections_take_no_room_from_those_that_ask(server: MetricsServer) -> None:
    with ExitStack() as open_sockets:
        for _ in range(40):
            idle = open_sockets.enter_context(open_socket(server))
            idle.sendall(b"GET /health/live HTTP/1.1\r\n")
        assert scrape(server, path="/health/live")[0] == 200
        assert scrape(server)[0] == 200


def test_scrapes_that_do_not_end_leave_room_for_health(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_MAX_SCRAPES", 2)
    collecting, go_on = Semaphore(0), Event()

    class Slow(Collector):
        def collect(self) -> Iterator[Metric]:
            collecting.release()
            go_on.wait(DEADLINE_S)
            return iter(())

    with (
        closing(MetricsServer("0", registry)) as server,
        ThreadPoolExecutor() as pool,
    ):
        registry.register(Slow())
        scrapes = [pool.submit(scrape, server) for _ in range(2)]
        for _ in scrapes:
            assert collecting.acquire(timeout=DEADLINE_S)
        assert scrape(server)[0] == 503
        assert [scrape(server, path=path)[0] for path in (metrics.LIVE, metrics.READY)] == [200] * 2
        go_on.set()
        assert [one.result()[0] for one in scrapes] == [200] * 2
        assert scrape(server)[0] == 200


def test_who_sees_the_end_of_an_answer_may_ask_again_at_once(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown, go_on = socketserver.TCPServer.shutdown_request, Event()

    def slowly(server: socketserver.TCPServer, request: socket.socket) -> None:
        request.shutdown(socket.SHUT_WR)  # so that the client sees the end
        go_on.wait(DEADLINE_S)
        shutdown(server, request)

    monkeypatch.setattr(metrics, "_MAX_SCRAPES", 1)
    monkeypatch.setattr(socketserver.TCPServer, "shutdown_request", slowly)
    with closing(MetricsServer("0", registry)) as server:
        assert [scrape(server)[0] for _ in range(2)] == [200] * 2
        go_on.set()


def test_a_collector_that_fails_hurts_only_its_scrape(
    server: MetricsServer, registry: CollectorRegistry
) -> None:
    class Broken(Collector):
        def collect(self) -> Iterator[Metric]:
            raise RuntimeError("not now")

    broken = Broken()
    registry.register(broken)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        scrape(server)
    registry.unregister(broken)
    assert scrape(server)[0] == 200
