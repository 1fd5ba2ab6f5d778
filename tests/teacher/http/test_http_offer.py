"""A teacher's HTTP is told of by gRPC, to callers that are known, and says its mark itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto.http_offer import OFFER, HttpOffer
from edl.proto.security import ServerSecurity
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import WAIT_S, Bench, refusal
from edl.tests.teacher.bench_http import ask, url_of

TELLING = [
    ("ServerMetadata", pb.ServerMetadataRequest()),
    ("ModelMetadata", pb.ModelMetadataRequest(name="resnet")),
]


def told(bench: Bench, method: str, request: Any, token: str = "") -> HttpOffer | None:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    asked = request.SerializeToString()
    _, call = bench.method(method).with_call(asked, timeout=WAIT_S, metadata=metadata)
    return HttpOffer.among(call.trailing_metadata())


@pytest.mark.parametrize(("method", "request_"), TELLING)
def test_grpc_tells_of_http(bench: Bench, method: str, request_: Any) -> None:
    offer = told(bench, method, request_)
    assert offer is not None
    assert offer.grpc_port == bench.server.port
    assert url_of(bench.server).endswith(f":{offer.http_port}")
    live = ask(bench, "GET", "/v2/health/live")
    assert live.headers[OFFER] == offer.mark


@pytest.mark.parametrize(("method", "request_"), TELLING)
def test_there_is_nothing_to_tell_without_it(
    make: Callable[..., Bench], method: str, request_: Any
) -> None:
    assert told(make(http=None), method, request_) is None


def test_strangers_are_not_told(make: Callable[..., Bench], tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student:resnet s3cret\n")
    bench = make(security=ServerSecurity(tokens_file=tokens))
    for method, request in TELLING:
        assert told(bench, method, request, "s3cret") is not None
        code, _ = refusal(lambda method=method, request=request: told(bench, method, request))  # type: ignore[misc]
        assert code is grpc.StatusCode.UNAUTHENTICATED


def test_no_two_starts_have_one_mark(make: Callable[..., Bench]) -> None:
    marks = {ask(make(), "GET", "/v2/health/live").headers[OFFER] for _ in range(2)}
    assert len(marks) == 2
