"""Who may ask a teacher, by gRPC and by HTTP: tokens, certificates, roles, web pages."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
import httpx
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto.frames import OFFER_REQUEST, TransportOffer
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import WAIT_S, Bench, Make, refusal
from edl.tests.teacher.bench_http import INFER, ask, infer, refused, rows

Code = grpc.StatusCode
GATED_METHODS = ("ModelInfer", "ModelReady", "ModelMetadata", "ServerMetadata")
GATED_PATHS = [
    *(("GET", f"/v2/models/{end}") for end in ("resnet", "resnet/ready", "resnet/stats", "stats")),
    *(("GET", path) for path in ("/v2", "/v2/systemsharedmemory/status")),
    *(("POST", f"/v2/systemsharedmemory/{end}") for end in ("unregister", "region/r/register")),
    *(("POST", path) for path in ("/v2/repository/index", INFER)),
]


def with_token(tmp_path: Path, token: str) -> ClientSecurity:
    return ClientSecurity(token_file=write_secret(tmp_path / "token", token))


def test_without_a_token_only_probes_are_answered(make: Make, tokens: ServerSecurity) -> None:
    bench = make(security=tokens, http="0")
    for name in GATED_METHODS:
        code, words = refusal(bench.method(name), bench.request(), timeout=WAIT_S)
        assert code is Code.UNAUTHENTICATED
        assert "no token came with the call" in words
        assert "token_file= of a DistilReader" in words
    assert bench.call("ServerLive").live
    assert bench.call("ServerReady").ready
    for number, (verb, path) in enumerate(GATED_PATHS, start=len(GATED_METHODS) + 1):
        answer = ask(bench, verb, path)
        assert "no token came with the call" in refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert bench.refused("unauthenticated") == number
    for path in ("live", "ready"):
        assert ask(bench, "GET", f"/v2/health/{path}").status_code == 200
    assert bench.requests("refused") == 0


def test_roles(make: Make, tokens: ServerSecurity, tmp_path: Path) -> None:
    for name in ("s3cret", "r00t"):
        bench = make(with_token(tmp_path, name), security=tokens, http="0")
        bench.infer()
        assert infer(bench, rows(), Authorization=f"Bearer {name}").status_code == 200
    viewer = make(with_token(tmp_path, "l00k"), security=tokens, http="0")
    assert viewer.call("ModelMetadata", name="resnet").name == "resnet"
    code, details = refusal(viewer.infer)
    assert code is Code.PERMISSION_DENIED
    assert "viewer:grafana" in details
    headers = {"Authorization": "Bearer l00k"}
    assert ask(viewer, "GET", "/v2/models/resnet", headers=headers).status_code == 200
    assert "viewer:grafana" in refused(infer(viewer, rows(), **headers), 403)
    assert viewer.refused("forbidden") == 2


def test_certificates_over_http(make: Make, authority: Authority) -> None:
    bench = make(security=ServerSecurity(authority.issue("server")), http="0")
    for name, status in (("student:resnet", 200), ("viewer:grafana", 403)):
        files = authority.issue(name.replace(":", "-"), name)
        context = ssl.create_default_context(cafile=str(files.ca))
        assert files.certificate is not None
        context.load_cert_chain(files.certificate, files.key)
        answer = ask(bench, "POST", INFER, json=rows(), verify=context)
        assert answer.status_code == status, answer.text
    nobody = ssl.create_default_context(cafile=str(files.ca))
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        ask(bench, "POST", INFER, json=rows(), verify=nobody)


def offered(bench: Bench, token: str = "", *, wanted: bool = True) -> TransportOffer | None:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    data = pb.ModelMetadataRequest(name="resnet").SerializeToString()
    metadata += OFFER_REQUEST if wanted else ()
    _, call = bench.method("ModelMetadata").with_call(data, timeout=WAIT_S, metadata=metadata)
    return TransportOffer.from_metadata(call.trailing_metadata())


def test_students_that_ask_for_it_are_offered_a_connection(make: Make, tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "both", "student:a s3cret\nviewer v1ewer\n")
    bench, secured = make(), make(security=ServerSecurity(tokens_file=tokens))
    offers = [offered(bench), offered(bench), offered(secured, "s3cret")]
    assert all(offer is not None for offer in offers)
    assert len({offer.secret for offer in offers if offer}) == 3
    assert offers[0] is not None
    assert offers[0].grpc_port == bench.server.port
    assert offered(bench, wanted=False) is None
    assert offered(secured, "v1ewer") is None
    assert secured.refused("forbidden") == 0
    assert refusal(offered, secured)[0] is Code.UNAUTHENTICATED
