"""What is HTTP's own: bodies, statuses, kept connections, TLS and tokens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edl import errors
from edl.proto.clients import Request, open_client
from edl.proto.clients.oip_http import OipHttpClient
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles
from edl.tests.foreign_server import MODEL, OUTPUT, ForeignHttp
from edl.tests.proto.clients.scripted_http import Asked, ScriptedHttp
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


def test_body_format_of_a_refusal_is_unknown(server: ForeignHttp, client: OipHttpClient) -> None:
    server.status = 400
    with pytest.raises(errors.RequestRefused, match="HTTP 400: as the test says"):
        client.infer(ASKED, WAIT_S)
    assert (client.binary, server.heads) == (None, [BYTES, JSON])
    server.status = 200
    client.infer(ASKED, WAIT_S)
    assert client.binary


STATUSES: dict[type[errors.EdlError], tuple[int, ...]] = {
    errors.BadAnswer: (202,),
    errors.RequestRefused: (302, 400, 404, 413, 422),
    errors.Unauthenticated: (401,),
    errors.Forbidden: (403,),
    errors.WrongInstance: (412,),
    errors.RateLimited: (429,),
    errors.RetryableError: (500, 503, 599),
    errors.TeacherLost: (502,),
    errors.DeadlineExceeded: (504,),
}


def test_statuses_are_errors(server: ForeignHttp, client: OipHttpClient) -> None:
    server.headers = {"Retry-After": "3"}
    for error, statuses in STATUSES.items():
        for server.status in statuses:
            with pytest.raises(error, match=f"HTTP {server.status}: as the test says") as caught:
                client.infer(ASKED, WAIT_S)
            assert type(caught.value) is error
            if isinstance(caught.value, errors.RateLimited):
                assert caught.value.retry_after_s == 3.0


def test_a_path_before_v2_is_kept(server: ForeignHttp) -> None:
    with (
        closing(OipHttpClient(f"{server.address}/front/", MODEL)) as client,
        pytest.raises(errors.RequestRefused, match="/front/v2/models/m/ready"),
    ):
        client.probe(WAIT_S)


def test_what_cannot_be_sent_is_refused(client: OipHttpClient) -> None:
    with pytest.raises(errors.RequestRefused, match=r"cannot be sent.*complex64"):
        client.infer(Request({"x": np.zeros(2, np.complex64)}), WAIT_S)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", errors.BadAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", errors.TeacherLost),
        (b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: -1\r\n\r\n{}", errors.BadAnswer),
        (b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 9\r\n\r\n{}", errors.BadAnswer),
        (b"SSH-2.0-OpenSSH_9.2\r\n", errors.BadAnswer),
        (b"", errors.TeacherLost),
    ],
)
def test_invalid_responses_are_refused(said: bytes, error: type[errors.EdlError]) -> None:
    def answer(asked: Asked, connection: socket.socket) -> bytes:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_RDWR)
        return b""

    server = ScriptedHttp(answer)
    try:
        with (
            closing(OipHttpClient(f"http://127.0.0.1:{server.port}", MODEL)) as client,
            pytest.raises(error),
        ):
            client.infer(ASKED, WAIT_S)
    finally:
        server.stop()


def test_what_comes_unasked_is_no_answer(server: ForeignHttp, client: OipHttpClient) -> None:
    client.infer(ASKED, WAIT_S)
    server.sockets[0].sendall(b"HTTP/1.1 408 Too Late\r\nContent-Length: 0\r\n\r\n")
    np.testing.assert_array_equal(client.infer(ASKED, WAIT_S).outputs[OUTPUT], logits_of(X))
    assert len(server.sockets) == 2


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://a..b:80", f"http://{'a' * 70}", "http://a:80/b c", "http://a/\u00e9"],
)
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(errors.UsageError, match="is no address"):
        open_client("oip", url, MODEL)


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
        _refused(
            url, ClientSecurity(files, write_secret(tmp_path / "bad", "bad\n")), errors.AccessError
        )
        _refused(url, None, errors.TeacherLost)  # it is not signed by anybody this machine knows
        stranger = Authority(tmp_path / "other").issue("student", "student:job")
        _refused(url, ClientSecurity(stranger, token), errors.TeacherLost)
        named = ClientSecurity(TlsFiles(files.certificate, files.key, files.ca), token, "elsewhere")
        _refused(url, named, errors.TeacherLost)
    finally:
        bench.close()


def test_nothing_secret_goes_in_the_clear(authority: Authority, tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "good-token\n")
    for security in (ClientSecurity(None, token), ClientSecurity(TlsFiles(ca=authority.ca))):
        with pytest.raises(errors.UsageError, match="not encrypted"):
            OipHttpClient("http://192.0.2.1:8000", MODEL, security)
        OipHttpClient("http://127.0.0.1:8000", MODEL, security).close()
        OipHttpClient("https://192.0.2.1:8000", MODEL, security).close()
    trusted = ClientSecurity(None, token, insecure=True)
    OipHttpClient("http://192.0.2.1:8000", MODEL, trusted).close()


def _refused(url: str, security: ClientSecurity | None, error: type[errors.EdlError]) -> None:
    with closing(OipHttpClient(url, "resnet", security)) as client, pytest.raises(error):
        client.probe(WAIT_S)
