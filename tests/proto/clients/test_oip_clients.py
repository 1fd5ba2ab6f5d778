"""Clients of the Open Inference Protocol: one body for each way to ask, and what is HTTP's own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.clients import LabelRequest, TeacherClient, input_mismatch, oip_grpc, open_client
from edl.proto.clients.oip_http import OipHttpClient
from edl.proto.datatypes import TensorSpec
from edl.proto.protocols import PADDLE_SERVING, PADDLE_SERVING_CPP
from edl.proto.security.credentials import ClientSecurity, ServerSecurity, TlsFiles
from edl.runtime import errors
from edl.tests.foreign_server import MODEL, OUTPUT, ForeignHttp, ForeignServer, Kind, start
from edl.tests.proto.clients.scripted_http import ReceivedRequest, ScriptedHttp
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.scripted_teacher import CLASSES, logits_of
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import url_of
from edl.tests.waiting import DEADLINE_S, wait_until

X = np.arange(24, dtype=np.float32).reshape(4, 6)
ASKED = LabelRequest({"x": X})


@pytest.fixture(params=get_args(Kind))
def server(request: pytest.FixtureRequest) -> Iterator[ForeignServer]:
    server = start(request.param)
    yield server
    server.stop()


@pytest.fixture
def client(server: ForeignServer) -> Iterator[TeacherClient]:
    with closing(open_client("oip", server.address, MODEL)) as client:
        yield client


def test_probe_finds_inputs_and_outputs(server: ForeignServer, client: TeacherClient) -> None:
    for said, most_rows in ((8, 8), (0, None)):
        server.most_rows = said
        found = client.probe(DEADLINE_S)
        assert found.inputs == (TensorSpec("x", "FP32", (-1, 6)),)
        assert found.outputs == (TensorSpec(OUTPUT, "FP32", (-1, CLASSES)),)
        assert found.most_rows == most_rows
    server.most_rows, server.describes = None, False
    found = client.probe(DEADLINE_S)
    assert (found.inputs, found.outputs, found.most_rows) == ((), (), None)
    server.ready = False
    with pytest.raises(errors.RetryableError, match="'m' is not ready"):
        client.probe(DEADLINE_S)


def test_labels_come_back_bit_for_bit(client: TeacherClient) -> None:
    for _ in range(3):
        form = {OUTPUT: {"form": "float16"}}
        asked = LabelRequest({"x": X}, (OUTPUT,), "7", {"teacher_id": "t"}, form)
        answer = client.infer(asked, DEADLINE_S)
        assert list(answer.outputs) == [OUTPUT]
        np.testing.assert_array_equal(answer.outputs[OUTPUT], logits_of(X))
        assert answer.outputs[OUTPUT].dtype == np.float32
        assert dict(answer.parameters) == {}


def test_many_may_ask_at_once(server: ForeignServer, client: TeacherClient) -> None:
    together = threading.Barrier(4, timeout=DEADLINE_S)

    def wait(x: Array) -> Array:
        together.wait()
        return logits_of(x)

    server.behaviour = wait
    scaled = [X * np.float32(scale) for scale in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda x: client.infer(LabelRequest({"x": x}), DEADLINE_S), scaled)
        for answer, x in zip(answers, scaled, strict=True):
            np.testing.assert_array_equal(answer.outputs[OUTPUT], logits_of(x))


@contextmanager
def answering_late(server: ForeignServer) -> Iterator[None]:
    """The server answers at the end of the `with`."""
    ended = threading.Event()
    server.behaviour = lambda x: (ended.wait(DEADLINE_S), logits_of(x))[1]
    try:
        yield
    finally:
        ended.set()


def test_late_answer_exceeds_the_deadline(server: ForeignServer, client: TeacherClient) -> None:
    with answering_late(server), pytest.raises(errors.DeadlineExceeded):
        client.infer(ASKED, 0.3)
    labels = client.infer(ASKED, DEADLINE_S).outputs[OUTPUT]
    np.testing.assert_array_equal(labels, logits_of(X))


def test_closing_ends_what_is_in_flight(server: ForeignServer, client: TeacherClient) -> None:
    with ThreadPoolExecutor(1) as pool, answering_late(server):
        asked = pool.submit(client.infer, ASKED, DEADLINE_S)
        wait_until(lambda: bool(server.requests))
        client.close()
        with pytest.raises(errors.TeacherLost):
            asked.result(DEADLINE_S)
    for call in (lambda: client.probe(1.0), lambda: client.infer(ASKED, 1.0)):
        with pytest.raises(errors.TeacherLost, match="closed"):
            call()
    client.close()


def test_what_cannot_be_sent_is_refused(client: TeacherClient) -> None:
    with pytest.raises(errors.RequestRefused, match=r"cannot be sent.*complex64"):
        client.infer(LabelRequest({"x": np.zeros(2, np.complex64)}), DEADLINE_S)


@pytest.mark.parametrize(
    ("protocol", "scheme"),
    [("", ""), ("", "grpc://"), ("", "http://"), (PADDLE_SERVING, ""), (PADDLE_SERVING_CPP, "")],
)
def test_unreachable_server_is_a_lost_teacher(protocol: str, scheme: str) -> None:
    with socket.socket() as silent:  # it does not listen, and keeps the port from all others
        silent.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        with closing(open_client(protocol, address, MODEL)) as client:
            for call in (lambda: client.probe(1.0), lambda: client.infer(ASKED, 1.0)):
                with pytest.raises(errors.TeacherLost):
                    call()
    with pytest.raises(errors.TeacherLost, match="closed"):
        client.probe(1.0)


NO_URLS = ("", "[::1", "a:x", "user:word@a:9", "a..b:80", "a" * 70, "a:80/b c", "a/\u00e9")


@pytest.mark.parametrize(
    ("protocol", "address"),
    [
        ("thrift", "127.0.0.1:9"),
        ("oip", "ftp://127.0.0.1:9"),
        ("oip", "grpc://127.0.0.1:9/path"),
        ("oip", ""),
        ("paddle-serving", "http://127.0.0.1:9"),
        ("paddle-serving", "127.0.0.1"),
        ("oip", "grpc://127.0.0.1"),
        ("oip", "[::1]"),
        ("oip", ":9"),
        *(("oip", f"http://{rest}") for rest in NO_URLS),
    ],
)
def test_what_is_no_address_or_protocol_is_told(protocol: str, address: str) -> None:
    with pytest.raises(
        errors.UsageError, match=r"no client speaks|is no address|has more than|names no port"
    ):
        open_client(protocol, address, MODEL)


def test_the_wrong_scheme_is_told(server: ForeignServer) -> None:
    scheme, _, bare = server.address.rpartition("://")
    wrong, error = ("grpc", errors.TeacherLost) if scheme else ("http", errors.BadAnswer)
    with (
        closing(open_client("oip", f"{wrong}://{bare}", MODEL)) as client,
        pytest.raises(error, match="write http://" if scheme else "write grpc://"),
    ):
        client.probe(DEADLINE_S)


DECLARED = (TensorSpec("x", "FP32", (-1, 16)), TensorSpec("mask", "BOOL", (-1,)))


def batch(shape: tuple[int, ...] = (8, 16), dtype: str = "float32") -> dict[str, Array]:
    return {"x": np.zeros(shape, dtype), "mask": np.zeros(8, np.bool_)}


def test_a_batch_that_does_not_fit_is_told_apart() -> None:
    assert input_mismatch(DECLARED, batch()) == input_mismatch((), batch()) == ""
    for shape in ((8, 4, 4), (16,)):
        assert input_mismatch(DECLARED, batch(shape)) == "", (
            "another number of dimensions is not judged"
        )
    unknown = (TensorSpec("x", "TENSOR", (-1, 16)),)
    assert input_mismatch(unknown, batch((8, 9))) == "", "an unknown datatype is not judged"
    assert "declared as [-1, 16], the batch has [8, 9]" in input_mismatch(DECLARED, batch((8, 9)))
    assert "as float32, the batch has float64" in input_mismatch(DECLARED, batch(dtype="float64"))
    assert "takes an input 'mask', the batch has ['x']" in input_mismatch(
        DECLARED, {"x": batch()["x"]}
    )


BYTES, JSON = "application/octet-stream", "application/json"


@pytest.fixture
def foreign() -> Iterator[ForeignHttp]:
    server = ForeignHttp()
    yield server
    server.stop()


@pytest.fixture
def http_client(foreign: ForeignHttp) -> Iterator[OipHttpClient]:
    with closing(OipHttpClient(foreign.address, MODEL)) as client:
        yield client


def test_body_format_follows_the_server(foreign: ForeignHttp, http_client: OipHttpClient) -> None:
    foreign.status = 400
    with pytest.raises(errors.RequestRefused, match="HTTP 400: as the test says"):
        http_client.infer(ASKED, DEADLINE_S)
    assert (http_client.binary, foreign.heads) == (None, [BYTES, JSON]), "it stays open"
    foreign.status = 200
    for _ in range(2):
        http_client.infer(ASKED, DEADLINE_S)
    assert foreign.heads[2:] == [BYTES, BYTES]
    foreign.binary = False
    with closing(OipHttpClient(foreign.address, MODEL)) as other:
        for _ in range(2):
            other.infer(ASKED, DEADLINE_S)
    assert foreign.heads[4:] == [BYTES, JSON, JSON]


class FailingHttp(ForeignHttp):
    """A server that fails at the first `failures` batches in bytes."""

    failures = 1

    @property
    def status(self) -> int:
        fails = self.heads[-1] == BYTES and self.heads.count(BYTES) <= self.failures
        return 500 if fails else 200

    @status.setter
    def status(self, _: int) -> None:
        """Ignore the value that the base class sets."""


@pytest.mark.parametrize(
    ("failures", "heads"),
    [(1, [BYTES, JSON, BYTES, BYTES]), (9, [BYTES, JSON, BYTES, JSON, JSON])],
)
def test_one_failure_is_no_refusal_of_bytes(failures: int, heads: list[str]) -> None:
    foreign = FailingHttp()
    foreign.failures = failures
    with closing(OipHttpClient(foreign.address, MODEL)) as client:
        for _ in range(3):
            client.infer(ASKED, DEADLINE_S)
    foreign.stop()
    assert foreign.heads == heads


def test_a_failure_is_not_hidden_because_json_cannot_carry_the_batch(
    foreign: ForeignHttp, http_client: OipHttpClient
) -> None:
    foreign.status = 500
    with pytest.raises(errors.RetryableError, match="HTTP 500: as the test says"):
        http_client.infer(LabelRequest({"x": X * np.float32("nan")}), DEADLINE_S)
    assert foreign.heads == [BYTES]


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


def test_statuses_are_errors(foreign: ForeignHttp, http_client: OipHttpClient) -> None:
    foreign.headers = {"Retry-After": "3"}
    for error, statuses in STATUSES.items():
        for foreign.status in statuses:
            with pytest.raises(error, match=f"HTTP {foreign.status}: as the test says") as caught:
                http_client.infer(ASKED, DEADLINE_S)
            assert type(caught.value) is error
            if isinstance(caught.value, errors.RateLimited):
                assert caught.value.retry_after_s == 3.0


@pytest.mark.parametrize(
    ("path", "model", "asked"),
    [("/front/", MODEL, "/front/v2/models/m/ready"), ("", "other/one", r"models/other%2Fone")],
)
def test_a_path_before_v2_is_kept_and_a_name_quoted(
    foreign: ForeignHttp, path: str, model: str, asked: str
) -> None:
    with (
        closing(OipHttpClient(f"{foreign.address}{path}", model)) as client,
        pytest.raises(errors.RequestRefused, match=asked),
    ):
        client.probe(DEADLINE_S)


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
    def answer(asked: ReceivedRequest, connection: socket.socket) -> bytes:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_RDWR)
        return b""

    with (
        closing(ScriptedHttp(answer)) as server,
        closing(OipHttpClient(f"http://127.0.0.1:{server.port}", MODEL)) as client,
        pytest.raises(error),
    ):
        client.infer(ASKED, DEADLINE_S)


def test_what_comes_unasked_is_no_answer(foreign: ForeignHttp, http_client: OipHttpClient) -> None:
    http_client.infer(ASKED, DEADLINE_S)
    foreign.sockets[0].sendall(b"HTTP/1.1 408 Too Late\r\nContent-Length: 0\r\n\r\n")
    labels = http_client.infer(ASKED, DEADLINE_S).outputs[OUTPUT]
    np.testing.assert_array_equal(labels, logits_of(X))
    assert len(foreign.sockets) == 2


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_certificates_and_tokens(authority: Authority, tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student good-token\n")
    token, bad_token = (write_secret(tmp_path / word, word) for word in ("good-token", "bad"))
    files = authority.issue("student", "student:job")
    stranger = Authority(tmp_path / "other").issue("student", "student:job")
    server = ServerSecurity(authority.issue("teacher"), tokens)
    with closing(Bench(http="0", security=server)) as bench:
        url = url_of(bench.server)
        with closing(OipHttpClient(url, "resnet", ClientSecurity(files, token))) as client:
            assert client.probe(DEADLINE_S).inputs
        for security, error in (
            (ClientSecurity(files, bad_token), errors.AccessError),
            (None, errors.TeacherLost),  # it is not signed by anybody this machine knows
            (ClientSecurity(stranger, token), errors.TeacherLost),
            (ClientSecurity(files, token, "elsewhere"), errors.TeacherLost),
        ):
            refused = OipHttpClient(url, "resnet", security)
            with closing(refused), pytest.raises(error):
                refused.probe(DEADLINE_S)
        renewed = ClientSecurity(TlsFiles(files.certificate, files.key, tmp_path / "ca"), token)
        for address in (url, bench.address):
            (tmp_path / "ca").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
            with closing(open_client("oip", address, "resnet", renewed)) as client:
                with pytest.raises(errors.TeacherLost):
                    client.probe(DEADLINE_S)
                (tmp_path / "ca").write_bytes(authority.ca.read_bytes())
                assert client.probe(DEADLINE_S).inputs


def test_nothing_secret_goes_in_the_clear(authority: Authority, tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "good-token\n")
    for security in (ClientSecurity(None, token), ClientSecurity(TlsFiles(ca=authority.ca))):
        with pytest.raises(errors.UsageError, match="not encrypted"):
            OipHttpClient("http://192.0.2.1:8000", MODEL, security)
        OipHttpClient("http://127.0.0.1:8000", MODEL, security).close()
        OipHttpClient("https://192.0.2.1:8000", MODEL, security).close()
    trusted = ClientSecurity(None, token, insecure=True)
    OipHttpClient("http://192.0.2.1:8000", MODEL, trusted).close()


def test_the_calls_of_a_probe_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, timeouts_s = [50.0], list[float]()
    really_call = oip_grpc._call  # noqa: SLF001 - each call takes a second of virtual time

    def call(method: object, request: object, timeout_s: float) -> object:
        timeouts_s.append(timeout_s)
        now_s[0] += 1.0
        return really_call(method, request, DEADLINE_S)

    monkeypatch.setattr(oip_grpc, "_call", call)
    monkeypatch.setattr(oip_grpc, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    server = start("grpc")
    server.most_rows = 8
    with closing(open_client("oip", server.address, MODEL)) as client:
        assert client.probe(9.0).most_rows == 8
    server.stop()
    assert timeouts_s == [9.0, 8.0, 7.0, 6.0]
