"""What is HTTP's own: which body a server takes, statuses, kept connections, TLS and tokens."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from edl.errors import (
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    Forbidden,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    UsageError,
    WrongInstance,
)
from edl.proto.arena import Array
from edl.proto.clients import Request, open_client
from edl.proto.clients.oip_http import OipHttpClient
from edl.tests.foreign_server import MODEL, OUTPUT, ForeignHttp
from edl.tests.scripted_teacher import logits_of

X = np.arange(24, dtype=np.float32).reshape(4, 6)
ASKED = Request({"x": X})
WAIT_S = 10.0
BYTES, JSON = "application/octet-stream", "application/json"


@pytest.fixture
def server() -> Iterator[ForeignHttp]:
    server = ForeignHttp()
    yield server
    server.stop()


@pytest.fixture
def client(server: ForeignHttp) -> Iterator[OipHttpClient]:
    client = OipHttpClient(server.address, MODEL)
    yield client
    client.close()


def test_what_a_server_takes_is_what_it_gets(server: ForeignHttp, client: OipHttpClient) -> None:
    for _ in range(2):
        client.infer(ASKED, WAIT_S)
    assert server.heads == [BYTES, BYTES]
    server.binary = False
    other = OipHttpClient(server.address, MODEL)
    try:
        for _ in range(2):
            other.infer(ASKED, WAIT_S)
    finally:
        other.close()
    assert server.heads[2:] == [BYTES, JSON, JSON]


def test_a_batch_that_is_refused_either_way_says_nothing_of_bytes(
    server: ForeignHttp, client: OipHttpClient
) -> None:
    server.status = 400
    with pytest.raises(RequestRefused, match="HTTP 400: as the test says"):
        client.infer(ASKED, WAIT_S)
    assert (client.binary, server.heads) == (None, [BYTES, JSON])
    server.status = 200
    client.infer(ASKED, WAIT_S)
    assert client.binary


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (202, BadAnswer),
        (302, RequestRefused),
        (400, RequestRefused),
        (401, Unauthenticated),
        (403, Forbidden),
        (404, RequestRefused),
        (412, WrongInstance),
        (422, RequestRefused),
        (429, RateLimited),
        (500, RetryableError),
        (502, TeacherLost),
        (503, RetryableError),
        (504, DeadlineExceeded),
        (599, RetryableError),
    ],
)
def test_statuses_are_errors(
    server: ForeignHttp, client: OipHttpClient, status: int, error: type[EdlError]
) -> None:
    server.status, server.headers = status, {"Retry-After": "3"}
    with pytest.raises(error, match=f"HTTP {status}: as the test says") as caught:
        client.infer(ASKED, WAIT_S)
    assert type(caught.value) is error
    if isinstance(caught.value, RateLimited):
        assert caught.value.retry_after_s == 3.0


def test_connections_are_kept(server: ForeignHttp, client: OipHttpClient) -> None:
    for _ in range(5):
        client.probe(WAIT_S)
        client.infer(ASKED, WAIT_S)
    assert len(server.sockets) == 1


def test_one_that_the_server_has_closed_meanwhile_is_opened_anew(
    server: ForeignHttp, client: OipHttpClient
) -> None:
    client.infer(ASKED, WAIT_S)
    server.sockets[0].shutdown(socket.SHUT_RDWR)
    np.testing.assert_array_equal(client.infer(ASKED, WAIT_S).outputs[OUTPUT], logits_of(X))
    assert len(server.sockets) == 2


def test_a_refusal_that_comes_before_the_body_has_gone_is_heard() -> None:
    """As servers do whose limit is below what the head announces."""
    said = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    large = Request({"x": np.zeros(8 << 20, np.float32)})
    with _says(said, hears_all=False) as url:
        client = open_client("oip", url, MODEL)
        try:
            with pytest.raises(RequestRefused, match="HTTP 413"):
                client.infer(large, WAIT_S)
        finally:
            client.close()


def test_a_path_before_v2_is_kept(server: ForeignHttp) -> None:
    client = OipHttpClient(f"{server.address}/front/", MODEL)
    try:
        with pytest.raises(RequestRefused, match="/front/v2/models/m/ready"):
            client.probe(WAIT_S)
    finally:
        client.close()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": np.zeros(2, np.complex64)}, "complex64"),
        ({"x": np.zeros(2, "datetime64[s]")}, "date"),
    ],
)
def test_what_cannot_be_sent_is_refused(client: OipHttpClient, inputs: dict, words: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(RequestRefused, match=f"cannot be sent.*{words}"):
        client.infer(Request(inputs), WAIT_S)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", BadAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", TeacherLost),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000000000\r\n\r\n{}", BadAnswer),
        (b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: -1\r\n\r\n{}", BadAnswer),
        (b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 9\r\n\r\n{}", BadAnswer),
        (b'HTTP/1.1 200 OK\r\n\r\n{"outputs": 3}', BadAnswer),
        (b'HTTP/1.1 200 OK\r\n\r\n{"outputs": [{"name": "y"}]}', BadAnswer),
        (b"HTTP/1.1 200 OK\r\n\r\n[1]", BadAnswer),
        (b"SSH-2.0-OpenSSH_9.2\r\n", BadAnswer),
        (b"", TeacherLost),
    ],
)
def test_nonsense_is_no_answer(said: bytes, error: type[EdlError]) -> None:
    with _says(said) as url:
        client = open_client("oip", url, MODEL)
        try:
            with pytest.raises(error):
                client.infer(ASKED, WAIT_S)
        finally:
            client.close()


@pytest.mark.serial
@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: ",
    ],
    ids=["body", "head", "trailer"],
)
def test_a_server_that_drips_does_not_outlast_the_time_there_is(said: bytes) -> None:
    with _says(said, drips=True) as url:
        client = open_client("oip", url, MODEL)
        began = time.monotonic()
        try:
            with pytest.raises(DeadlineExceeded):
                client.infer(ASKED, 0.5)
        finally:
            client.close()
        assert time.monotonic() - began < 2.0


def test_what_comes_unasked_is_no_answer(server: ForeignHttp, client: OipHttpClient) -> None:
    """As a proxy's word that the connection was idle for too long, or a second answer."""
    client.infer(ASKED, WAIT_S)
    server.sockets[0].sendall(b"HTTP/1.1 408 Too Late\r\nContent-Length: 0\r\n\r\n")
    np.testing.assert_array_equal(client.infer(ASKED, WAIT_S).outputs[OUTPUT], logits_of(X))
    assert len(server.sockets) == 2


def test_an_answer_behind_another_one_is_not_that_to_the_next_request(
    server: ForeignHttp, client: OipHttpClient
) -> None:
    client.infer(ASKED, WAIT_S)
    held = threading.Event()

    def hint(x: Array) -> Array:
        server.sockets[0].sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        held.wait(WAIT_S)
        return logits_of(x)

    server.behaviour = hint
    with pytest.raises(BadAnswer, match="HTTP 103"):
        client.infer(ASKED, WAIT_S)
    server.behaviour = logits_of
    other = {"x": X + 1}
    threading.Timer(0.2, held.set).start()
    labels = client.infer(Request(other), WAIT_S).outputs[OUTPUT]
    np.testing.assert_array_equal(labels, logits_of(other["x"]))


def test_words_without_an_end_are_cut() -> None:
    said = b"HTTP/1.1 503 Busy\r\n\r\n" + b"[" * 100_000
    with _says(said) as url:
        client = open_client("oip", url, MODEL)
        try:
            with pytest.raises(RetryableError, match=r"HTTP 503: \[+$"):
                client.infer(ASKED, WAIT_S)
        finally:
            client.close()


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://a..b:80", f"http://{'a' * 70}", "http://a:80/b c", "http://a/\u00e9"],
)
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        open_client("oip", url, MODEL)


# --- who may ask


class _says:
    """A server that answers every connection so, and hangs up; or goes on, a byte at a time.

    One that does not hear all answers the head alone.
    """

    def __init__(self, said: bytes, drips: bool = False, hears_all: bool = True) -> None:
        self._said, self._drips, self._hears_all = said, drips, hears_all
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._socket.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                _read_request(connection.recv, self._hears_all)
                connection.sendall(self._said)  # and hangs up
                if not self._hears_all:
                    connection.shutdown(socket.SHUT_WR)
                    self._ended.wait(0.5)  # what is unread would take the answer with it
                while self._drips and not self._ended.wait(0.02):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        break


def _read_request(receive: Callable[[int], bytes], hears_all: bool) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    while hears_all and len(body) < length:
        body += receive(1 << 16)
