"""What is HTTP's own: bodies, statuses, kept connections, TLS and tokens."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edl.errors import (
    AccessError,
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
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles
from edl.tests.foreign_server import MODEL, OUTPUT, ForeignHttp
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.scripted_teacher import logits_of
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import url_of

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
    with closing(OipHttpClient(server.address, MODEL)) as other:
        for _ in range(2):
            other.infer(ASKED, WAIT_S)
    assert server.heads[2:] == [BYTES, JSON, JSON]


def test_refused_as_bytes_and_as_json_keeps_the_body_format_unknown(
    server: ForeignHttp, client: OipHttpClient
) -> None:
    server.status = 400
    with pytest.raises(RequestRefused, match="HTTP 400: as the test says"):
        client.infer(ASKED, WAIT_S)
    assert (client.binary, server.heads) == (None, [BYTES, JSON])
    server.status = 200
    client.infer(ASKED, WAIT_S)
    assert client.binary


STATUSES: dict[type[EdlError], tuple[int, ...]] = {
    BadAnswer: (202,),
    RequestRefused: (302, 400, 404, 422),
    Unauthenticated: (401,),
    Forbidden: (403,),
    WrongInstance: (412,),
    RateLimited: (429,),
    RetryableError: (500, 503, 599),
    TeacherLost: (502,),
    DeadlineExceeded: (504,),
}


def test_statuses_are_errors(server: ForeignHttp, client: OipHttpClient) -> None:
    server.headers = {"Retry-After": "3"}
    for error, statuses in STATUSES.items():
        for server.status in statuses:
            with pytest.raises(error, match=f"HTTP {server.status}: as the test says") as caught:
                client.infer(ASKED, WAIT_S)
            assert type(caught.value) is error
            if isinstance(caught.value, RateLimited):
                assert caught.value.retry_after_s == 3.0


def test_connections_are_kept(server: ForeignHttp, client: OipHttpClient) -> None:
    for _ in range(5):
        client.probe(WAIT_S)
        client.infer(ASKED, WAIT_S)
    assert len(server.sockets) == 1


def test_connection_that_the_server_closed_is_reopened(
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
    with (
        _says(said, hears_all=False) as url,
        closing(open_client("oip", url, MODEL)) as client,
        pytest.raises(RequestRefused, match="HTTP 413"),
    ):
        client.infer(large, WAIT_S)


def test_a_path_before_v2_is_kept(server: ForeignHttp) -> None:
    with (
        closing(OipHttpClient(f"{server.address}/front/", MODEL)) as client,
        pytest.raises(RequestRefused, match="/front/v2/models/m/ready"),
    ):
        client.probe(WAIT_S)


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
    with (
        _says(said) as url,
        closing(open_client("oip", url, MODEL)) as client,
        pytest.raises(error),
    ):
        client.infer(ASKED, WAIT_S)


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
    with (
        _says(said, drips=True) as url,
        closing(open_client("oip", url, MODEL)) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.infer(ASKED, 0.5)


def test_what_comes_unasked_is_no_answer(server: ForeignHttp, client: OipHttpClient) -> None:
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
    labels = client.infer(Request(other), WAIT_S).outputs[OUTPUT]
    held.set()
    np.testing.assert_array_equal(labels, logits_of(other["x"]))


def test_long_error_texts_are_cut() -> None:
    said = b"HTTP/1.1 503 Busy\r\n\r\n" + b"[" * 100_000
    with (
        _says(said) as url,
        closing(open_client("oip", url, MODEL)) as client,
        pytest.raises(RetryableError, match=r"HTTP 503: \[+$"),
    ):
        client.infer(ASKED, WAIT_S)


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://a..b:80", f"http://{'a' * 70}", "http://a:80/b c", "http://a/\u00e9"],
)
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        open_client("oip", url, MODEL)


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


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_certificates_and_tokens(authority: Authority, tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student good-token\n")
    token = write_secret(tmp_path / "token", "good-token\n")
    bench = Bench(http="0", security=ServerSecurity(authority.issue("teacher"), tokens))
    files = authority.issue("student", "student:job")
    url = url_of(bench.server)
    assert url.startswith("https://")
    try:
        client = OipHttpClient(url, "resnet", ClientSecurity(files, token))
        assert client.probe(WAIT_S).inputs
        client.close()
        _refused(url, ClientSecurity(files, write_secret(tmp_path / "bad", "bad\n")), AccessError)
        _refused(url, None, TeacherLost)  # it is not signed by anybody this machine knows
        stranger = Authority(tmp_path / "other").issue("student", "student:job")
        _refused(url, ClientSecurity(stranger, token), TeacherLost)
        named = ClientSecurity(TlsFiles(files.certificate, files.key, files.ca), token, "elsewhere")
        _refused(url, named, TeacherLost)
    finally:
        bench.close()


def test_nothing_secret_goes_in_the_clear(authority: Authority, tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "good-token\n")
    for security in (ClientSecurity(None, token), ClientSecurity(TlsFiles(ca=authority.ca))):
        with pytest.raises(UsageError, match="not encrypted"):
            OipHttpClient("http://192.0.2.1:8000", MODEL, security)
        OipHttpClient("http://127.0.0.1:8000", MODEL, security).close()
        OipHttpClient("https://192.0.2.1:8000", MODEL, security).close()
    trusted = ClientSecurity(None, token, insecure=True)
    OipHttpClient("http://192.0.2.1:8000", MODEL, trusted).close()


def _refused(url: str, security: ClientSecurity | None, error: type[EdlError]) -> None:
    with closing(OipHttpClient(url, "resnet", security)) as client, pytest.raises(error):
        client.probe(WAIT_S)
