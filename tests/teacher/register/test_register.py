"""A foreign server: what it has to show, how it is registered, and its attestation."""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from edl.coordinator.manager.prober import INSTANCE_KEY, SIDECAR, GrpcProber
from edl.coordinator.store.records import Member
from edl.proto import inference_pb2 as pb
from edl.proto.arena import Array
from edl.proto.clients import LabelRequest, LabelResponse, ModelDescription
from edl.proto.datatypes import TensorSpec, as_one_array
from edl.proto.forms import softmax
from edl.proto.security.client_connections import open_channel
from edl.proto.security.credentials import ClientSecurity, ServerSecurity, TlsFiles
from edl.runtime.errors import BadAnswer, ModelError, RequestRefused, UsageError, WrongInstance
from edl.runtime.lifecycle import Stop
from edl.teacher.identity import InstanceIdentity
from edl.teacher.register import sidecar
from edl.teacher.register.cli import security_at
from edl.teacher.register.config import RegisterConfig
from edl.teacher.register.server_check import MEASURED, ServerTest
from edl.teacher.register.sidecar import AttestationServer, register, resolve_endpoint
from edl.teacher.self_test import Canary
from edl.tests.coordinator.test_prober import probe
from edl.tests.foreign_server import BEHAVIOURS, MODEL, ForeignGrpc, Kind, start
from edl.tests.proto.security.authority import write_secret
from edl.tests.scripted_teacher import CLASSES, logits_of
from edl.tests.waiting import DEADLINE_S, wait_until

X = np.arange(24, dtype=np.float32).reshape(4, 6)
CANARY = Canary.from_answer("c", 1e-3, {"x": X}, {"logits": logits_of(X)})
WIDTHS = itertools.cycle((5, 6))
INPUT = TensorSpec("x", "FP32", (-1, 6))


class ScriptedClient:
    """A client of a server that has `inputs`, and labels as `label` does."""

    def __init__(self, label: Callable[[LabelRequest], Mapping[str, Array]], *inputs: TensorSpec):
        self.label, self._inputs = label, inputs

    def probe(self, timeout_s: float) -> ModelDescription:
        return ModelDescription(self._inputs)

    def infer(self, request: LabelRequest, timeout_s: float) -> LabelResponse:
        return LabelResponse(dict(self.label(request)))

    def close(self) -> None:
        """Nothing is open."""

    def server_test(self, *declared: TensorSpec, canary: Canary | None = None) -> ServerTest:
        config = RegisterConfig("s", "h:1", "m", "c", "", inputs=declared, rows=4, timeout_s=1.0)
        return ServerTest(self, config, canary)


def logits(function: Callable[[Array], Array]) -> Callable[[LabelRequest], dict[str, Array]]:
    return lambda request: {"logits": function(as_one_array(request.inputs["x"]))}


def test_a_good_server_is_measured_and_a_slow_one_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Array] = []

    def slow(x: Array) -> Array:
        asked.append(x)
        time.sleep(0.1)
        return logits_of(x)

    client = ScriptedClient(logits(slow), INPUT)
    for canary, verified in ((None, "declared"), (CANARY, "canary")):
        with closing(client.server_test(canary=canary)) as server_test:
            server_test.check_ready(1.0)
            measured = server_test.run()
        assert measured.verified == verified
        assert measured.t_t_s >= 0.1 / 8  # two batches of 4 are on their way at once
        assert measured.warnings == ()
        assert measured.kinds == {"logits": "logits"}
    asked.clear()
    monkeypatch.setattr("edl.teacher.register.server_check._BUDGET_S", 0.0)
    assert client.server_test(canary=CANARY).run().t_t_s > 0
    assert len(asked) < MEASURED


def test_a_server_that_changes_is_refused() -> None:
    client = ScriptedClient(logits(logits_of), INPUT)
    server_test = client.server_test()
    server_test.run()
    for _ in range(2):
        server_test.repeat()
    client.label = logits(lambda x: logits_of(x)[:, 1:])
    with pytest.raises(ModelError, match="than at first"):
        server_test.repeat()


def unreadable(x: Array) -> Array:
    raise BadAnswer("no tensors")


@pytest.mark.parametrize(
    "function", [unreadable, *(BEHAVIOURS[name] for name in ("nan", "short", "text", "other"))]
)
def test_wrong_answers_are_refused(function: Callable[[Array], Array]) -> None:
    server_test = ScriptedClient(logits(function), INPUT).server_test(canary=CANARY)
    for test in (server_test.run, server_test.repeat):
        with pytest.raises(ModelError):
            test()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (lambda x: np.ones((len(x), CLASSES), np.float32), "weights loaded"),
        (lambda x: np.tile(x[:, :1], CLASSES).astype(np.float32), "uniform"),
        (lambda x: logits_of(x)[:, : next(WIDTHS)], "other names, shapes or dtypes"),
    ],
)
def test_uninformative_answers_are_refused(behaviour: Callable[[Array], Array], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        ScriptedClient(logits(behaviour), INPUT).server_test().run()


def test_undescribed_inputs_must_be_declared() -> None:
    client = ScriptedClient(logits(logits_of))
    with pytest.raises(UsageError, match="--input"):
        client.server_test().run()
    assert client.server_test(INPUT).run().t_t_s > 0
    assert client.server_test(canary=CANARY).run().t_t_s > 0


def test_outputs_may_come_in_any_order() -> None:
    orders = itertools.cycle((1, -1))

    def shuffled(request: LabelRequest) -> dict[str, Array]:
        x = as_one_array(request.inputs["x"])
        labels = [("logits", logits_of(x)), ("softmax", softmax(logits_of(x), 1.0))]
        return dict(labels[:: next(orders)])

    server_test = ScriptedClient(shuffled).server_test(INPUT)
    assert server_test.run().kinds == {"logits": "logits", "softmax": "probabilities"}
    for _ in range(2):
        server_test.repeat()


def refuse(request: LabelRequest) -> dict[str, Array]:
    raise RequestRefused("ids beyond the vocabulary")


@pytest.mark.parametrize(
    ("datatype", "shape"),
    [
        *(("FP32", shape) for shape in ((), (-1, 0), (-1, -5), (-1, 1 << 45), (1,) * 80)),
        ("TENSOR", (-1, 6)),
    ],
)
def test_a_spec_without_a_batch_is_a_usage_error(datatype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"no batch can be made of x:.*--input"):
        ScriptedClient(refuse).server_test(TensorSpec("x", datatype, shape)).run()


def test_refused_noise_asks_for_a_canary() -> None:
    client = ScriptedClient(refuse, INPUT, TensorSpec("mask", "INT64", (-1, 6)))
    for declared in ((), (INPUT,)):
        with pytest.raises(ModelError, match=r"ids beyond the vocabulary.*--canary"):
            client.server_test(*declared).run()
    with pytest.raises(ModelError, match="refuses the canary's samples"):
        client.server_test(INPUT, canary=CANARY).repeat()
    with pytest.raises(UsageError, match="server has no input 'y'; its inputs are x, mask"):
        client.server_test(TensorSpec("y", "FP32", (-1, 6))).run()


def test_our_own_teachers_are_refused() -> None:
    def label(request: LabelRequest) -> dict[str, Array]:
        if request.parameters:
            raise WrongInstance("teacher_id 't' was asked for; this is 'u'")
        return {"logits": logits_of(as_one_array(request.inputs["x"]))}

    def refuse_always(request: LabelRequest) -> dict[str, Array]:
        raise WrongInstance("this is 'u'")

    with pytest.raises(UsageError, match=r"an edl-teacher .*--redis"):
        ScriptedClient(label).server_test(INPUT).run()
    with pytest.raises(WrongInstance):
        ScriptedClient(refuse_always).server_test(INPUT).run()


def config(**options: Any) -> RegisterConfig:
    return RegisterConfig(
        **{
            "service": "s", "endpoint": "grpc://h:1", "model": "m", "content_id": "c",
            "coordinator": "memory://x", **options,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"content_id": ""}, "--content"),
        ({"ttl_s": math.nan}, "--ttl must be above 0"),
        ({"protocol": "thrift"}, "no client speaks 'thrift'"),
        ({"endpoint": "ftp://h:1", "teacher_id": "t"}, "is no address"),
        ({"endpoint": "grpc://127.0.0.1"}, "names no port"),
        ({"teacher_id": "a b"}, "the id of a teacher"),
        ({"inputs": (TensorSpec("a b", "FP32", (-1,)),)}, "input 'a b' must hold no blanks"),
        ({"canary": Path("/no-such-file")}, "no-such-file"),
        ({"canary": replace(CANARY, content_id="other")}, "of content other.*leave --content out"),
        ({"canary": replace(CANARY, inputs={"a b": X})}, "input 'a b' must hold no blanks"),
    ],
)
def test_wrong_options_are_refused_early(
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


def facts_of(identity: InstanceIdentity, attestation: AttestationServer) -> dict[str, str]:
    return {
        "incarnation": "7", "address": identity.attested_address, "protocol": "oip", "model": MODEL,
        SIDECAR: f"127.0.0.1:{attestation.port}", INSTANCE_KEY: identity.key,
    }  # fmt: skip


def test_an_attestation_is_for_one_server(foreign: ForeignGrpc, ending: ExitStack) -> None:
    identity = InstanceIdentity("s", "t", 7, attested_address=foreign.address)
    attestation = AttestationServer("127.0.0.1:0", None)
    prober = GrpcProber(answer_s=DEADLINE_S)
    ending.callback(attestation.stop)
    ending.callback(prober.stop)
    facts = facts_of(identity, attestation)
    assert probe(prober, Member("t", facts)).status == "retry", "it vouches for nobody yet"
    attestation.identity = identity
    assert probe(prober, Member("t", facts)).status == "ok"
    for other in ({"address": "127.0.0.1:9"}, {"incarnation": "8"}, {INSTANCE_KEY: "k" * 64}):
        assert "an impostor" in probe(prober, Member("t", {**facts, **other})).why
    assert probe(prober, Member("u", facts)).status != "ok"
    attestation.identity = None
    assert probe(prober, Member("t", facts)).status != "ok"


def test_an_attestation_needs_a_token(tmp_path: Path, ending: ExitStack) -> None:
    tokens = write_secret(tmp_path / "tokens", "viewer:manager a-token\n")
    token = write_secret(tmp_path / "token", "a-token")
    attestation = AttestationServer("127.0.0.1:0", ServerSecurity(None, tokens))
    attestation.identity = identity = InstanceIdentity("s", "t", 7, attested_address="127.0.0.1:9")
    ending.callback(attestation.stop)
    asked = Member("t", facts_of(identity, attestation))
    for security, words in (
        (None, "refuses the manager's probe"),
        (ClientSecurity(None, token), "is not ready"),  # that is about the server itself
    ):
        prober = GrpcProber(security, answer_s=DEADLINE_S)
        ending.callback(prober.stop)
        assert words in probe(prober, asked).why
    with open_channel(f"127.0.0.1:{attestation.port}") as channel:
        method = "/inference.GRPCInferenceService/ServerReady"
        ready: Any = channel.unary_unary(method, None, pb.ServerReadyResponse.FromString)
        assert ready(b"", timeout=DEADLINE_S).ready


def test_a_ca_alone_is_for_loopback() -> None:
    ca, mine = Path("ca.crt"), Path("mine.pem")
    assert security_at("127.0.0.1", TlsFiles(ca=ca), None) is None
    with pytest.raises(UsageError, match="needs a certificate: --tls cert=FILE,key=FILE"):
        security_at("0.0.0.0", TlsFiles(ca=ca), None)
    whole = security_at("127.0.0.1", TlsFiles(mine, mine, ca), None)
    assert whole is not None
    assert whole.tls == TlsFiles(mine, mine, ca)


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("ready", [True, False])
def test_the_protocol_of_a_server_is_found(
    kind: Kind, ready: bool, ending: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "_ANSWER_S", DEADLINE_S)  # of a busy machine
    server = start(kind)
    ending.callback(server.stop)
    server.ready = ready
    bare = server.address.removeprefix("http://")
    found = resolve_endpoint(config(endpoint=bare, model=MODEL), Stop(), pytest.fail)
    assert found is not None
    assert found.address == server.address


@pytest.mark.parametrize("endpoint", ["grpc://127.0.0.1:9", "http://127.0.0.1:9"])
def test_a_named_protocol_is_not_probed(endpoint: str) -> None:
    bare = config(endpoint="127.0.0.1:9", protocol="paddle-serving")
    for said in (config(endpoint=endpoint), bare):
        assert resolve_endpoint(said, Stop(), pytest.fail) is said


def test_a_missing_server_is_awaited_until_the_stop(tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", "a-token")
    stop, told = Stop(), list[str]()
    with socket.socket() as silent, ThreadPoolExecutor(1) as pool:
        silent.bind(("127.0.0.1", 0))  # it does not listen, and keeps the port from all others
        bare = f"127.0.0.1:{silent.getsockname()[1]}"
        nobody = config(endpoint=bare, client=ClientSecurity(None, token))
        found = pool.submit(resolve_endpoint, nobody, stop, told.append)
        wait_until(lambda: bool(told))
        stop.request()
        assert found.result(DEADLINE_S) is None
    assert f"grpc://{bare}" in told[0]
    assert f"http://{bare}" in told[0]
