"""One line of HTTP: what leaves and what comes, in how many pieces ever, and until when."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import BadAnswer, DeadlineExceeded, TeacherLost
from edl.proto.clients.http_line import HttpLine
from edl.proto.clients.http_messages import HttpRequest, PlainHead, Reply
from edl.proto.clients.lines import Ended
from edl.tests.proto.clients.scripted_http import reply
from edl.tests.waiting import DEADLINE_S

GET = HttpRequest("GET", "/v2")


class Pair:
    def __init__(self, wire: threading.Lock | None = None) -> None:
        here, self.there = socket.socketpair()
        self.there.settimeout(DEADLINE_S)
        self.line = HttpLine(here, "host:1", wire or threading.Lock())

    def hears(self, nbytes: int) -> bytes:
        came = b""
        while len(came) < nbytes:
            came += self.there.recv(1 << 20)
        return came

    def ask(self, said: bytes, within_s: float = DEADLINE_S) -> Reply:
        self.there.sendall(said)
        return self.line.ask(GET, time.monotonic() + within_s)

    def close(self) -> None:
        self.line.end()
        self.there.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Pair()) as pair:
        yield pair


def test_request_is_sent_from_any_number_of_pieces(pair: Pair) -> None:
    pieces = [np.full(k % 7, k % 256, np.uint8).data for k in range(1200)]
    pieces.append(np.arange(1 << 22, dtype=np.uint8).data)  # more than any buffer of the system
    request = HttpRequest("POST", "/v2/x", {"A": "b"}, pieces)
    whole = b"".join(bytes(piece) for piece in pieces)
    head = (
        "POST /v2/x HTTP/1.1\r\nHost: host:1\r\nAccept-Encoding: identity\r\nA: b\r\n"
        f"Content-Length: {len(whole)}\r\n\r\n"
    ).encode()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(pair.line.ask, request, time.monotonic() + DEADLINE_S)
        assert pair.hears(len(head) + len(whole)) == head + whole
        pair.there.sendall(reply(b"yes", headers={"X-Y": "z"}))
        answer = asked.result(DEADLINE_S)
    assert (answer.status, bytes(answer.body), answer.headers["x-y"]) == (200, b"yes", "z")
    assert pair.line.is_open


@given(st.binary(max_size=20_000), st.integers(1, 5000))
def test_reply_is_read_from_any_number_of_pieces(body: bytes, size: int) -> None:
    said = reply(body)

    def say(there: socket.socket) -> None:
        for at in range(0, len(said), size):
            there.sendall(said[at : at + size])

    with closing(Pair()) as fresh, ThreadPoolExecutor(1) as pool:
        saying = pool.submit(say, fresh.there)
        answer = fresh.line.ask(GET, time.monotonic() + DEADLINE_S)
        saying.result(DEADLINE_S)
        assert bytes(answer.body) == body
        assert fresh.line.is_open


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n", b"yes"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes", b"yes"),
        (b"HTTP/1.1 204 None\r\n\r\n", b""),
    ],
)
def test_unusual_heads_are_read(pair: Pair, said: bytes, body: bytes) -> None:
    assert bytes(pair.ask(said).body) == body
    assert pair.line.is_open


@pytest.mark.parametrize(
    "said",
    [
        reply(b"yes", headers={"Connection": "close"}),
        reply(b"yes") + b"more",
        reply(b"yes").replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"HTTP/1.1 103 Hints\r\n\r\n",
    ],
)
def test_connection_is_not_open_after_its_last_reply(pair: Pair, said: bytes) -> None:
    pair.ask(said)
    assert not pair.line.is_open


@pytest.mark.parametrize(
    ("said", "words"),
    [(b"Content-Length: 4000000000\r\n\r\n", "no message may"), (bytes(1 << 17), "no HTTP")],
)
def test_a_reply_of_any_length_is_refused_before_it_comes(
    pair: Pair, said: bytes, words: str
) -> None:
    with pytest.raises(BadAnswer, match=words):
        pair.ask(b"HTTP/1.1 200 OK\r\nX: y\r\n" + said)


def test_sending_to_a_stuck_server_exceeds_the_deadline(pair: Pair) -> None:
    request = HttpRequest("POST", "/v2", {}, [bytes(1 << 24)])
    with pytest.raises(DeadlineExceeded):
        pair.line.ask(request, time.monotonic() + 0.1)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: ",
    ],
    ids=["body", "head", "trailer"],
)
def test_a_reply_that_drips_exceeds_the_deadline(pair: Pair, said: bytes) -> None:
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.02):
            pair.there.sendall(b" ")

    with ThreadPoolExecutor(1) as pool:
        dripping = pool.submit(drip)
        try:
            with pytest.raises(DeadlineExceeded):
                pair.ask(said, within_s=0.3)
        finally:
            over.set()
        dripping.result(DEADLINE_S)


def test_a_reply_before_the_whole_request_was_sent_is_read(pair: Pair) -> None:
    """Servers refuse a body that is too large while it comes."""
    request = HttpRequest("POST", "/v2", {}, [bytes(1 << 24)])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(pair.line.ask, request, time.monotonic() + DEADLINE_S)
        pair.hears(1)
        pair.there.sendall(reply(status="413 Too Large"))
        pair.there.close()
        assert asked.result(DEADLINE_S).status == 413
    assert not pair.line.is_open


def test_a_long_error_text_is_cut() -> None:
    assert Reply(503, {}, memoryview(b"[" * 100_000)).words() == "[" * 300


def test_ending_a_connection_stops_its_sender(pair: Pair) -> None:
    request = HttpRequest("POST", "/v2", {}, [bytes(1 << 24)])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(pair.line.ask, request, time.monotonic() + DEADLINE_S)
        pair.hears(1)
        pair.line.end()
        with pytest.raises(Ended) as caught:
            asked.result(DEADLINE_S)
    assert isinstance(caught.value.why, TeacherLost)


def test_requests_to_one_server_leave_one_after_the_other() -> None:
    wire = threading.Lock()
    body = HttpRequest("POST", "/v2", {}, [bytes(1 << 24)])
    with closing(Pair(wire)) as first, closing(Pair(wire)) as second, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(first.line.ask, body, time.monotonic() + DEADLINE_S)
        first.hears(1)  # it is under way
        with pytest.raises(DeadlineExceeded):
            second.line.ask(GET, time.monotonic() + 0.1)
        second.there.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.there.recv(1)
        first.line.end()
        with pytest.raises(Ended):
            slow.result(DEADLINE_S)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_none(head: bytes) -> None:
    PlainHead.read(head)


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 1\r\nContent-Length: 1",
        b"Content-Length: +1",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked",
        b"Content-Length: 1\r\n X: folded",
        b"Content-Length : 1",
        b"X: y",
    ],
)
def test_a_doubtful_head_is_not_plain(fields: bytes) -> None:
    assert PlainHead.read(b"HTTP/1.1 200 OK\r\n" + fields) is None
    assert PlainHead.read(b"HTTP/1.1 200 OK\r\nContent-Length: 1") is not None
