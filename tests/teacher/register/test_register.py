"""The sidecar's settings, the voucher, and what the command says of itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from edl.coordinator.manager.prober import INSTANCE_KEY, VOUCHER, GrpcProber
from edl.coordinator.registry import Member
from edl.errors import ModelError, UsageError
from edl.lifecycle import Stop
from edl.proto import inference_pb2 as pb
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles, open_channel
from edl.proto.specs import TensorSpec
from edl.teacher.canary import Canary
from edl.teacher.identity import Identity
from edl.teacher.register.cli import security_at
from edl.teacher.register.config import RegisterConfig
from edl.teacher.register.dialect import with_scheme
from edl.teacher.register.sidecar import register
from edl.teacher.register.voucher import Voucher
from edl.tests.coordinator.test_prober import probe
from edl.tests.foreign_server import MODEL, ForeignGrpc, Kind, start
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.register.test_trial import CANARY, X
from edl.tests.waiting import wait_until


def config(**options: Any) -> RegisterConfig:
    return RegisterConfig(
        **{
            "service": "s", "endpoint": "grpc://h:1", "model": "m", "content_id": "c",
            "coordinator": "memory://x", **options,
        }
    )  # fmt: skip


def test_the_scheme_of_grpc_is_left_out() -> None:
    assert (config().address, config().member) == ("h:1", "h:1")
    http = config(endpoint="http://h:1", teacher_id="t")
    assert (http.address, http.member) == ("http://h:1", "t")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"content_id": ""}, "--content"),
        ({"rows": 0}, "--rows must be above 0"),
        ({"timeout_s": -1.0}, "--timeout must be above 0"),
        ({"protocol": "thrift"}, "no client speaks 'thrift'"),
        ({"endpoint": "ftp://h:1", "teacher_id": "t"}, "is no address"),
        ({"endpoint": "grpc://127.0.0.1"}, "names no port"),
        ({"teacher_id": "a b"}, "the id of a teacher"),
        ({"inputs": (TensorSpec("a b", "FP32", (-1,)),)}, "input 'a b' must hold no blanks"),
        ({"canary": Path("/no-such-file")}, "no-such-file"),
        (
            {"canary": replace(CANARY, content_id="other")},
            "the canary is of content other.*leave --content out",
        ),
        ({"canary": replace(CANARY, inputs={"a b": X})}, "input 'a b' must hold no blanks"),
    ],
)
def test_wrong_options_are_refused_before_connecting(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    if isinstance(canary := options.get("canary"), Canary):
        canary.save(tmp_path / "canary")
        options = {"canary": tmp_path / "canary"}
    with pytest.raises((UsageError, ModelError), match=words):
        register(config(**options), Stop(), on_ready=pytest.fail, on_progress=pytest.fail)


@pytest.fixture
def foreign() -> Iterator[ForeignGrpc]:
    server = ForeignGrpc()
    yield server
    server.stop()


def test_an_attestation_is_for_one_server(foreign: ForeignGrpc) -> None:
    identity = Identity("s", "t", 7, vouched=foreign.address)
    voucher, prober = Voucher("127.0.0.1:0", None), GrpcProber(answer_s=2.0)
    facts = {
        "incarnation": "7", "address": foreign.address, "protocol": "oip", "model": MODEL,
        VOUCHER: f"127.0.0.1:{voucher.port}", INSTANCE_KEY: identity.key,
    }  # fmt: skip
    try:
        assert probe(prober, Member("t", facts)).retry, "it vouches for nobody yet"
        voucher.identity = identity
        assert probe(prober, Member("t", facts)).ok
        for other in ({"address": "127.0.0.1:9"}, {"incarnation": "8"}, {INSTANCE_KEY: "k" * 64}):
            verdict = probe(prober, Member("t", {**facts, **other}))
            assert "an impostor" in verdict.why
        assert not probe(prober, Member("u", facts)).ok
        voucher.identity = None
        assert not probe(prober, Member("t", facts)).ok
    finally:
        prober.stop()
        voucher.stop()


def test_an_attestation_needs_a_token(tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "viewer:manager a-token\n")
    token = write_secret(tmp_path / "token", "a-token")
    voucher = Voucher("127.0.0.1:0", ServerSecurity(None, tokens))
    voucher.identity = identity = Identity("s", "t", 7, vouched="127.0.0.1:9")
    asked = Member(
        "t",
        {
            "incarnation": "7", "address": "127.0.0.1:9", INSTANCE_KEY: identity.key,
            VOUCHER: f"127.0.0.1:{voucher.port}",
        },
    )  # fmt: skip
    try:
        for security, words in (
            (None, "refuses the manager's probe"),
            (ClientSecurity(None, token), "is not ready"),  # that is about the server itself
        ):
            prober = GrpcProber(security, answer_s=2.0)
            verdict = probe(prober, asked)
            prober.stop()
            assert words in verdict.why
        with open_channel(f"127.0.0.1:{voucher.port}") as channel:
            method = "/inference.GRPCInferenceService/ServerReady"
            ready: Any = channel.unary_unary(method, None, pb.ServerReadyResponse.FromString)
            assert ready(b"", timeout=5).ready
    finally:
        voucher.stop()


def test_a_ca_alone_is_for_loopback() -> None:
    ca, mine = Path("ca.crt"), Path("mine.pem")
    assert security_at("127.0.0.1", None, None, ca, None) is None
    with pytest.raises(UsageError, match="needs --tls-cert and --tls-key"):
        security_at("0.0.0.0", None, None, ca, None)
    whole = security_at("127.0.0.1", mine, mine, ca, None)
    assert whole is not None
    assert whole.tls == TlsFiles(mine, mine, ca)


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("ready", [True, False])
def test_the_protocol_of_a_server_is_found(kind: Kind, ready: bool) -> None:
    server = start(kind)
    server.ready = ready
    try:
        bare = server.address.removeprefix("http://")
        found = with_scheme(config(endpoint=bare, model=MODEL), Stop(), pytest.fail)
        assert found is not None
        assert found.address == server.address
    finally:
        server.stop()


@pytest.mark.parametrize("endpoint", ["grpc://127.0.0.1:9", "http://127.0.0.1:9"])
def test_a_named_protocol_is_not_probed(endpoint: str) -> None:
    said = config(endpoint=endpoint)
    assert with_scheme(said, Stop(), pytest.fail) is said
    other = config(endpoint="127.0.0.1:9", protocol="paddle-serving")
    assert with_scheme(other, Stop(), pytest.fail) is other


def test_a_missing_server_is_awaited_until_the_stop(tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "a-token")
    stop, told, found = Stop(), list[str](), list[object]()
    with socket.socket() as silent:  # it does not listen, and keeps the port from all others
        silent.bind(("127.0.0.1", 0))
        bare = f"127.0.0.1:{silent.getsockname()[1]}"
        nobody = config(endpoint=bare, client=ClientSecurity(None, token))
        thread = threading.Thread(
            target=lambda: found.append(with_scheme(nobody, stop, told.append))
        )
        thread.start()
        wait_until(lambda: bool(told))
        stop.request()
        thread.join(60.0)
    assert found == [None]
    assert f"grpc://{bare}" in told[0]
    assert f"http://{bare}" in told[0]
