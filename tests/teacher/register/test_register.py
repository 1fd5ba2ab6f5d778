"""The sidecar's settings, the voucher, and what the command says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl.coordinator.manager.prober import INSTANCE_KEY, VOUCHER, GrpcProber
from edl.coordinator.registry import Member
from edl.errors import ModelError, UsageError
from edl.lifecycle import Stop
from edl.proto import inference_pb2 as pb
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles, open_channel
from edl.proto.specs import TensorSpec
from edl.teacher.canary import Canary
from edl.teacher.cli import app
from edl.teacher.identity import Identity
from edl.teacher.register.cli import security_at
from edl.teacher.register.config import RegisterConfig
from edl.teacher.register.sidecar import register
from edl.teacher.register.voucher import Voucher
from edl.tests.coordinator.test_prober import probe
from edl.tests.foreign_server import MODEL, ForeignGrpc
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.register.test_trial import CANARY


def config(**options: Any) -> RegisterConfig:
    return RegisterConfig(
        **{
            "service": "s", "endpoint": "grpc://h:1", "model": "m", "content_id": "c",
            "coordinator": "memory://x", **options,
        }
    )  # fmt: skip


def test_an_address_stands_without_the_scheme_of_grpc() -> None:
    assert (config().address, config().member) == ("h:1", "h:1")
    http = config(endpoint="http://h:1", teacher_id="t")
    assert (http.address, http.member) == ("http://h:1", "t")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"content_id": ""}, "--content"),
        ({"rows": 0}, "--rows must be above 0"),
        ({"timeout_s": -1.0}, "--timeout must be above 0"),
    ],
)
def test_what_cannot_be_is_told_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        config(**options)


def test_what_cannot_work_is_found_before_anything_is_dialled(tmp_path: Path) -> None:
    def start(**options: Any) -> None:
        register(config(**options), Stop(), on_ready=pytest.fail, on_progress=pytest.fail)

    with pytest.raises(UsageError, match="no client speaks 'thrift'"):
        start(protocol="thrift")
    with pytest.raises(UsageError, match="is no address"):
        start(endpoint="ftp://h:1", teacher_id="t")
    with pytest.raises(UsageError, match="the id of a teacher"):
        start(teacher_id="a b")
    with pytest.raises(ModelError, match="no-such-file"):
        start(canary=tmp_path / "no-such-file")
    path = tmp_path / "canary"
    Canary.of("other", 1e-3, CANARY.inputs, CANARY.outputs).save(path)
    with pytest.raises(ModelError, match=r"the canary is of content other.*leave --content out"):
        start(canary=path)
    Canary.of("c", 1e-3, {"a b": CANARY.inputs["x"]}, CANARY.outputs).save(path)
    blanks = "the name of input 'a b' must hold no blanks"
    with pytest.raises(UsageError, match=blanks):
        start(canary=path)
    with pytest.raises(UsageError, match=blanks):
        start(inputs=(TensorSpec("a b", "FP32", (-1,)),))
    with pytest.raises(UsageError, match="names no port"):
        start(endpoint="grpc://127.0.0.1")


@pytest.fixture
def foreign() -> Iterator[ForeignGrpc]:
    server = ForeignGrpc()
    yield server
    server.stop()


def test_a_voucher_proves_what_it_stands_for_and_nothing_else(foreign: ForeignGrpc) -> None:
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


def test_a_voucher_asks_who_calls(tmp_path: Path) -> None:
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


def test_a_ca_alone_is_for_asking_the_server_where_only_this_machine_asks_us() -> None:
    ca, mine = Path("ca.crt"), Path("mine.pem")
    assert security_at("127.0.0.1", None, None, ca, None) is None
    with pytest.raises(UsageError, match="needs --tls-cert and --tls-key"):
        security_at("0.0.0.0", None, None, ca, None)
    whole = security_at("127.0.0.1", mine, mine, ca, None)
    assert whole is not None
    assert whole.tls == TlsFiles(mine, mine, ca)


def test_the_help_says_every_setting() -> None:
    result = CliRunner().invoke(
        app, ["register", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}
    )
    assert result.exit_code == 0
    said = result.output
    for option in ("--endpoint", "--content", "--canary", "--protocol", "--input", "--test-every"):
        assert option in said
    assert "EDL_ENDPOINT" in said
