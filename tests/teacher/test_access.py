"""Who may ask a teacher: by token, by certificate, by role; and what everybody may know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles
from edl.teacher.front.calls import Call, CallTable
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import WAIT_S, Bench, refusal

TOKENS = "student:resnet s3cret\nviewer:grafana l00k\nadmin:ann r00t\n"
GATED = ("ModelInfer", "ModelReady", "ModelMetadata", "ServerMetadata")


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(client: ClientSecurity | None = None, **config: Any) -> Bench:
        benches.append(Bench(client, **config))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def tokens(tmp_path: Path) -> ServerSecurity:
    return ServerSecurity(tokens_file=write_secret(tmp_path / "tokens", TOKENS))


def with_token(tmp_path: Path, token: str) -> ClientSecurity:
    return ClientSecurity(token_file=write_secret(tmp_path / "token", token))


def ask(bench: Bench, method: str) -> bytes:
    answer = bench.method(method)(bench.request(), timeout=WAIT_S)
    assert isinstance(answer, bytes)
    return answer


@pytest.mark.parametrize("method", GATED)
def test_without_a_token_no_method_tells_anything(
    make: Callable[..., Bench], tokens: ServerSecurity, method: str
) -> None:
    bench = make(security=tokens)
    code, details = refusal(lambda: ask(bench, method))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "no token came with the call" in details
    assert bench.refused("unauthenticated") == 1
    assert bench.count("edl_teacher_requests_total", outcome="refused") == 0


def test_probes_need_none(make: Callable[..., Bench], tokens: ServerSecurity) -> None:
    bench = make(security=tokens)
    assert bench.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
    assert bench.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
    assert bench.refused("unauthenticated") == 0


def test_a_wrong_token_is_refused_and_a_large_request_is_not_read_before(
    make: Callable[..., Bench], tokens: ServerSecurity, tmp_path: Path
) -> None:
    bench = make(with_token(tmp_path, "wr0ng"), security=tokens, max_message_bytes=64 << 20)
    for _ in range(3):
        code, details = refusal(lambda: bench.infer(rows=1 << 20))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "wr0ng" not in details
    assert bench.refused("unauthenticated") == 3
    assert bench.count("edl_teacher_received_bytes_total") == 0


def test_a_student_is_served_an_admin_too_and_a_viewer_may_only_look(
    make: Callable[..., Bench], tokens: ServerSecurity, tmp_path: Path
) -> None:
    for name in ("s3cret", "r00t"):
        make(with_token(tmp_path, name), security=tokens).infer()
    viewer = make(with_token(tmp_path, "l00k"), security=tokens)
    metadata = viewer.call(
        "ModelMetadata", pb.ModelMetadataRequest(name="resnet"), pb.ModelMetadataResponse
    )
    assert metadata.name == "resnet"
    code, details = refusal(viewer.infer)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "viewer:grafana" in details
    assert viewer.refused("forbidden") == 1


def test_a_token_that_is_withdrawn_is_refused_from_then_on(
    make: Callable[..., Bench], tokens: ServerSecurity, tmp_path: Path
) -> None:
    bench = make(with_token(tmp_path, "s3cret"), security=tokens)
    bench.infer()
    write_secret(tmp_path / "tokens", "student:resnet other\n")
    assert refusal(bench.infer)[0] is grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def test_tls_and_a_certificate_of_the_right_ca(
    make: Callable[..., Bench], authority: Authority, tmp_path: Path
) -> None:
    server = ServerSecurity(authority.issue("server"))
    student = ClientSecurity(authority.issue("student", "student:resnet"))
    bench = make(student, security=server)
    bench.infer()
    viewer = make(ClientSecurity(authority.issue("viewer", "viewer:grafana")), security=server)
    assert refusal(viewer.infer)[0] is grpc.StatusCode.PERMISSION_DENIED


def test_strangers_do_not_get_through_tls_and_disturb_nobody(
    make: Callable[..., Bench], authority: Authority, tmp_path: Path
) -> None:
    server = ServerSecurity(authority.issue("server"))
    student = authority.issue("student", "student:resnet")
    good = make(ClientSecurity(student), security=server)
    strangers = Authority(tmp_path / "strangers")
    forged = replace(strangers.issue("forged", "admin:ann"), ca=authority.ca)
    for client in (
        ClientSecurity(forged),  # of another CA
        ClientSecurity(TlsFiles(ca=authority.ca)),  # without a certificate
        ClientSecurity(replace(student, ca=strangers.ca)),  # that does not trust this server
        None,  # in plain text
    ):
        stranger = make(client, security=server)
        assert refusal(stranger.infer)[0] is grpc.StatusCode.UNAVAILABLE
        assert stranger.count("edl_teacher_requests_total", outcome="answered") == 0
        good.infer()


def test_limits_tell_callers_apart_by_who_they_are(
    make: Callable[..., Bench],
    tokens: ServerSecurity,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = make(with_token(tmp_path, "s3cret"), security=tokens)
    seen: list[str] = []
    begin = CallTable.begin

    def watched(table: CallTable, peer: str) -> Call:
        seen.append(peer)
        return begin(table, peer)

    monkeypatch.setattr(CallTable, "begin", watched)
    bench.infer()
    assert seen == ["student:resnet at 127.0.0.1"]
