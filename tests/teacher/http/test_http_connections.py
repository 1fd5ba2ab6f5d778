"""Connections of HTTP: bodies that are too large or do not come, and who is idle."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from edl.teacher.http import connections
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.bench_http import INFER, ask, infer, refused, rows, url_of


def test_a_body_beyond_the_limit_is_not_read(bench: Bench) -> None:
    large = bytes((1 << 20) + 1)
    words = refused(ask(bench, "POST", INFER, content=large), 413)
    assert "larger than max (1048577 vs. 1048576 bytes)" in words

    def pieces() -> Iterator[bytes]:
        for _ in range(9):
            yield bytes(1 << 17)

    assert "larger than max" in refused(ask(bench, "POST", INFER, content=pieces()), 413)
    assert bench.refused("too_large") == 2
    assert infer(bench, rows()).status_code == 200


def test_a_compressed_body_is_refused(bench: Bench) -> None:
    answer = infer(bench, rows(), **{"Content-Encoding": "gzip"})
    assert "not with Content-Encoding gzip" in refused(answer, 415)


def test_a_body_that_does_not_come_ends_its_request(make: Callable[..., Bench]) -> None:
    bench = make(receive_s=0.3)
    with _half_sent(bench) as connection:
        answer = _whole(connection)
    assert b"503" in answer.split(b"\r\n")[0]
    assert b"did not come within 0.3 s" in answer


def test_a_body_that_does_not_come_makes_room_for_others(make: Callable[..., Bench]) -> None:
    bench = make(max_calls_per_peer=1)
    with _half_sent(bench) as connection:
        wait_for(lambda: len(bench.server._methods.infer_calls) == 1)
        assert infer(bench, rows()).status_code == 200
        assert b"429" in connection.recv(4096).split(b"\r\n")[0]
    bench.infer()


def _half_sent(bench: Bench) -> socket.socket:
    connection = socket.create_connection(_address(bench), WAIT_S)
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{"
    connection.sendall(head.encode())
    return connection


def _whole(connection: socket.socket) -> bytes:
    """An answer whose body is one JSON object; the connection stands on."""
    answer = b""
    while not answer.endswith(b"}"):
        more = connection.recv(4096)
        assert more, answer
        answer += more
    return answer


def _address(bench: Bench) -> tuple[str, int]:
    host, port = url_of(bench.server).removeprefix("http://").split(":")
    return host, int(port)


def test_what_is_no_http_is_told_so_in_json(bench: Bench) -> None:
    with socket.create_connection(_address(bench), WAIT_S) as connection:
        connection.sendall(b"\x16\x03\x01 what?\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    wait_for(lambda: bench.refused("malformed") == 1)


def test_a_connection_that_asks_nothing_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_IDLE_S", 0.3)
    began = time.monotonic()
    with socket.create_connection(_address(bench), WAIT_S) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: ")  # and no more
        assert connection.recv(1) == b""
    assert 0.2 < time.monotonic() - began < WAIT_S


def test_the_longest_idle_connection_makes_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 3)
    with contextlib.ExitStack() as open_:
        idle, http = [], bench.server._http
        assert http is not None
        known = http._server.server_state
        for count in range(1, 4):
            connection = socket.create_connection(_address(bench), WAIT_S)
            idle.append(open_.enter_context(connection))
            wait_for(lambda count=count: len(known.connections) == count)  # type: ignore[misc]
        assert infer(bench, rows()).status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""
        idle[1].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[1].recv(4096).startswith(b"HTTP/1.1 200")
