"""Requests of HTTP: what leaves and what comes, until when, and which connections are kept."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edl.proto.clients import oip_http
from edl.proto.clients.oip_http import HttpConnectionPool, HttpReply
from edl.proto.datatypes import Buffer
from edl.proto.security.certificates import reloading_context
from edl.proto.security.client_connections import HttpConnector
from edl.proto.security.credentials import ClientSecurity, TlsFiles
from edl.runtime.errors import BadAnswer, DeadlineExceeded, InputsOverwritten, TeacherLost
from edl.tests.proto.clients.scripted_http import ReceivedRequest, ScriptedHttp, reply
from edl.tests.proto.security.authority import Authority
from edl.tests.waiting import DEADLINE_S

PATH = "/v2/models/m/infer"


class Talk:
    def __init__(self) -> None:
        self.server = ScriptedHttp()
        self.calls = HttpConnectionPool(HttpConnector(f"http://127.0.0.1:{self.server.port}"))

    def says(self, *said: bytes) -> None:
        answers = iter(said)
        self.server.behave = lambda *_: next(answers)

    def ask(
        self, *body: Buffer, within_s: float = DEADLINE_S, check: Callable[[], None] | None = None
    ) -> HttpReply:
        until_s = time.monotonic() + within_s
        return self.calls.call("POST", PATH, until_s, body, {"A": "b"}, check)

    @property
    def opened(self) -> int:
        return len(self.server.connections)

    def close(self) -> None:
        self.calls.close()
        self.server.close()


@pytest.fixture
def talk() -> Iterator[Talk]:
    with closing(Talk()) as talk:
        yield talk


def test_a_request_is_sent_from_any_number_of_pieces(talk: Talk) -> None:
    pieces = [np.full(k % 7, k % 256, np.uint8).data for k in range(1200)]
    pieces.append(np.arange(1 << 22, dtype=np.uint8).data)  # more than any buffer of the system
    talk.says(reply(b"yes", headers={"X-Y": "z"}), reply())
    answer = talk.ask(*pieces)
    assert (answer.status, bytes(answer.body), answer.headers["x-y"]) == (200, b"yes", "z")
    assert talk.ask().status == 200
    first, second = talk.server.asked
    assert first.body == b"".join(bytes(piece) for piece in pieces)
    assert first.headers["a"] == "b"
    assert (second.body, second.headers["content-length"]) == (b"", "0")
    assert talk.opened == 1


@pytest.mark.parametrize(
    ("said", "body", "opened"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n", b"yes", 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"yes"), b"yes", 1),
        (b"HTTP/1.1 204 None\r\n\r\n", b"", 1),
        # A connection is not used after its last reply.
        (reply(b"yes", headers={"Connection": "close"}), b"yes", 2),
        (reply(b"yes").replace(b"HTTP/1.1", b"HTTP/1.0"), b"yes", 2),
        (b"HTTP/1.1 103 Hints\r\n\r\n", b"", 2),
    ],
)
def test_connections_are_kept(talk: Talk, said: bytes, body: bytes, opened: int) -> None:
    talk.says(said, said)
    for _ in range(2):
        assert bytes(talk.ask().body) == body
    assert talk.opened == opened


def test_a_request_is_sent_again_where_a_kept_connection_has_ended(talk: Talk) -> None:
    talk.says(reply(), reply())
    talk.ask()
    talk.server.connections[0].shutdown(socket.SHUT_RDWR)
    assert talk.ask().status == 200
    assert talk.opened == 2

    def end(_: ReceivedRequest, connection: socket.socket) -> bytes:
        connection.shutdown(socket.SHUT_RDWR)
        return b""

    talk.server.behave = end
    with pytest.raises(TeacherLost):
        talk.ask()
    assert talk.opened == 3, "once, by a connection of its own"


@pytest.mark.parametrize(
    ("said", "words"),
    [(b"Content-Length: 4000000000\r\n\r\n", "larger than the limit"), (bytes(1 << 17), "no HTTP")],
)
def test_endless_replies_are_refused(talk: Talk, said: bytes, words: str) -> None:
    talk.says(b"HTTP/1.1 200 OK\r\nX: y\r\n" + said)
    with pytest.raises(BadAnswer, match=words):
        talk.ask()


def test_a_server_that_does_not_read_exceeds_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        calls = HttpConnectionPool(HttpConnector(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with closing(calls), pytest.raises(DeadlineExceeded):
            calls.call("POST", PATH, time.monotonic() + 0.2, [bytes(1 << 24), b"x"])


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: ",
    ],
    ids=["body", "head", "trailer"],
)
def test_a_reply_that_drips_exceeds_the_deadline(talk: Talk, said: bytes) -> None:
    over = threading.Event()

    def drip(_: ReceivedRequest, connection: socket.socket) -> bytes:
        connection.sendall(said)
        with suppress(OSError):
            while not over.wait(0.02):
                connection.sendall(b" ")
        return b""

    talk.server.behave = drip
    with pytest.raises(DeadlineExceeded):
        talk.ask(within_s=0.3)
    over.set()


def test_a_reply_before_the_whole_request_was_sent_is_read() -> None:
    """Servers refuse a body that is too large while it comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        calls = HttpConnectionPool(HttpConnector(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        until_s = time.monotonic() + DEADLINE_S
        asked = pool.submit(calls.call, "POST", PATH, until_s, [bytes(1 << 24)])
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            connection.sendall(reply(status="413 Too Large"))
        assert asked.result(DEADLINE_S).status == 413
        calls.close()


def test_a_body_that_changes_while_it_is_sent_is_not_answered(talk: Talk) -> None:
    talk.says(reply(), reply())

    def changed() -> None:
        raise InputsOverwritten("the memory of the batch was reused before it was sent")

    with pytest.raises(InputsOverwritten):
        talk.ask(b"x", check=changed)
    assert talk.ask(b"x").status == 200
    assert talk.opened == 2


def test_closing_during_an_encrypted_reply_makes_no_body_of_ciphertext(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, body = Authority(tmp_path), bytes(40 << 10)  # three records of TLS
    context = reloading_context(authority.issue("server"))
    all_sent, over = threading.Event(), threading.Event()

    def answer(listener: socket.socket) -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
            connection.recv(1 << 16)
            connection.sendall(reply(body))
            all_sent.set()
            over.wait(DEADLINE_S)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        security = ClientSecurity(TlsFiles(ca=authority.ca))
        calls = HttpConnectionPool(HttpConnector(url, security))

        def close_within(nbytes: int) -> None:
            if 16 << 10 < nbytes < len(body) and all_sent.wait(DEADLINE_S):
                calls.close()

        monkeypatch.setattr(oip_http, "_check_size", close_within)
        served = pool.submit(answer, listener)
        with suppress(TeacherLost):
            assert calls.call("GET", PATH, time.monotonic() + DEADLINE_S).body == body
        over.set()
        served.result(DEADLINE_S)


def test_a_long_error_text_is_cut() -> None:
    assert HttpReply(503, {}, memoryview(b"[" * 100_000)).error_text() == "[" * 300


def test_a_late_reply_over_a_kept_connection_is_not_asked_for_again(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert talk.ask().status == 200
    asked, over, skipped_s = threading.Event(), threading.Event(), [0.0]

    def wait(*_: object) -> bytes:
        asked.set()
        over.wait(DEADLINE_S)
        return b""

    def let_time_pass() -> None:
        assert asked.wait(DEADLINE_S)
        skipped_s[0] = DEADLINE_S

    talk.server.behave = wait
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped_s[0])
    monkeypatch.setattr(oip_http, "time", clock)
    with pytest.raises(DeadlineExceeded, match="no answer"):
        talk.ask(check=let_time_pass)
    over.set()
    assert (len(talk.server.asked), talk.opened) == (2, 1)
