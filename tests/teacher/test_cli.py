"""The command line: its help, what it turns into, and misuse."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl.errors import UsageError
from edl.lifecycle import Stop
from edl.proto.security import ServerSecurity, TlsFiles
from edl.scheduler.batching import BatchRule
from edl.supervise import start
from edl.teacher import cli, over_http, serving
from edl.teacher.advertise import advertised, split
from edl.teacher.cli import app, model_name
from edl.teacher.config import PredictorConfig, ServerConfig, TeacherConfig
from edl.teacher.devices import Device, check_cores, parse_devices
from edl.teacher.model import TensorSpec
from edl.teacher.paddle_serving import engine
from edl.tests.ground.programs import python

runner = CliRunner()
TLS = ("--tls-cert", "c", "--tls-key", "k")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[TeacherConfig]:
    """The configurations that would have been served."""
    configs: list[TeacherConfig] = []

    def record(config: TeacherConfig, stop: Stop, **more: object) -> None:
        configs.append(config)

    for module in (serving, engine):
        monkeypatch.setattr(module, "serve", record)
    # Its handler would outlive the runner's stderr, which it writes to.
    monkeypatch.setattr(cli, "configure_logging", lambda verbose: None)
    return configs


def run(*arguments: str, env: dict[str, str] | None = None) -> None:
    result = runner.invoke(app, ["serve", *arguments], env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_defaults_serve_on_loopback_alone(served: list[TeacherConfig]) -> None:
    run("--model", "models/resnet101/")
    server = ServerConfig("127.0.0.1", 0, 4, 256 << 20, 256, 64, 10.0, None, "127.0.0.1:0")
    predictor = PredictorConfig("models/resnet101/", "cpu", 1, 8, ())
    assert served == [TeacherConfig("resnet101", predictor, server, ttl_s=6.0, grace_s=30.0)]


def test_options_of_the_model(served: list[TeacherConfig]) -> None:
    run(
        *("--model", "nets:make", "--backend", "paced", "--rate", "1600"),
        *("--output", "y:FP32:-1,10", "--preprocess", "nhwc", "--preprocess", "hooks:mine"),
        env={"EDL_PRECISION": "bf16"},
    )
    (config,) = served
    assert config.predictor == PredictorConfig(
        "nets:make",
        outputs=(TensorSpec("y", "FP32", (-1, 10)),),
        backend="paced",
        precision="bf16",
        preprocess=("nhwc", "hooks:mine"),
        rate=1600.0,
    )
    assert PredictorConfig.from_json(config.predictor.to_json()) == config.predictor


def test_options_of_the_self_test(served: list[TeacherConfig]) -> None:
    run("--model", "m:f", "--canary", "good.canary")
    run("--model", "m:f", env={"EDL_NO_SELF_TEST": "1"})
    assert [config.predictor.self_test for config in served] == [True, False]
    assert [config.predictor.canary for config in served] == ["good.canary", None]
    predictor = served[0].predictor
    assert PredictorConfig.from_json(predictor.to_json()) == predictor
    with pytest.raises(UsageError, match="leave --no-self-test out"):
        run("--model", "m:f", "--canary", "good.canary", "--no-self-test")


def test_options_of_devices_and_batches(served: list[TeacherConfig]) -> None:
    run(
        *("--model", "m:f", "--devices", "cpu:0-1,cpu:3+5,gpu:0", "--threads", "7"),
        *("--micro-batch", "auto", "--batch-max", "32", "--batch-preferred", "8,16"),
        env={"EDL_BATCH_DELAY": "0.02"},
    )
    (config,) = served
    assert [str(device) for device in config.devices] == ["cpu:0-1", "cpu:3+5", "gpu:0"]
    assert [(p.device, p.cores, p.threads) for p in config.predictors] == [
        ("cpu", (0, 1), 2),
        ("cpu", (3, 5), 2),
        ("gpu:0", (), 7),
    ]
    assert config.predictor.micro_batch is None
    assert config.batching == BatchRule(32, 0.02, frozenset({8, 16}))
    assert config.server.slots == 12


@pytest.mark.parametrize(
    "arguments",
    [
        ("--micro-batch", "0"),
        ("--micro-batch", "many"),
        ("--batch-preferred", "8"),
        ("--batch-max", "8", "--batch-preferred", "9"),
        ("--batch-max", "8", "--batch-preferred", "4,x"),
        ("--devices", "cpu:0,cpu:0"),
        ("--devices", "tpu"),
        ("--deterministic", "--micro-batch", "auto"),
        ("--deterministic", "--batch-max", "8"),
        ("--deterministic", "--devices", "cpu:0-1,cpu:2"),
    ],
)
def test_wrong_sizes_and_devices_are_refused(
    arguments: tuple[str, ...], served: list[TeacherConfig]
) -> None:
    with pytest.raises(UsageError):
        run("--model", "m:f", *arguments)
    assert not served


def test_equal_devices_may_be_deterministic(
    served: list[TeacherConfig],
) -> None:
    run("--model", "m:f", "--deterministic", "--devices", "cpu:0-1,cpu:2-3")
    assert served[0].deterministic


def test_flags_override_the_environment(
    served: list[TeacherConfig],
) -> None:
    env = {"EDL_COORDINATOR": "redis://head:6379", "EDL_SLOTS": "7", "EDL_MICRO_BATCH": "4"}
    run("--model", "m:f", "--slots", "9", "--input", "x:FP32:-1,4", env=env)
    (config,) = served
    assert config.service == "f"
    assert config.coordinator == "redis://head:6379"
    assert config.server.slots == 9
    assert config.predictor.micro_batch == 4
    assert config.predictor.inputs == (TensorSpec("x", "FP32", (-1, 4)),)


@pytest.mark.parametrize(
    ("arguments", "http"),
    [
        ((), "127.0.0.1:0"),
        (("--host", "::1"), "[::1]:0"),
        (("--http", "8000", "--host", "127.0.0.2"), "127.0.0.2:8000"),
        (("--http", "127.0.0.1:8000"), "127.0.0.1:8000"),
        (("--http", "off"), None),
        (("--http", "off", "--engine", "paddle-serving", "--serving-python", "python"), None),
        (("--engine", "paddle-serving", "--serving-python", "python"), None),
    ],
)
def test_the_address_of_http(
    arguments: tuple[str, ...], http: str | None, served: list[TeacherConfig]
) -> None:
    run("--model", "m", *arguments)
    assert served[0].server.http == http


def test_http_is_off_without_its_packages(
    served: list[TeacherConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_http, "_NEEDED", ("starlette", "edl_no_such_package"))
    run("--model", "m")
    run("--model", "m", "--http", "0")  # asked for: the server says what is missing
    assert [config.server.http for config in served] == [None, "127.0.0.1:0"]


def test_beyond_loopback_needs_insecure_or_credentials(served: list[TeacherConfig]) -> None:
    everywhere = ("--model", "m", "--host", "0.0.0.0")
    with pytest.raises(UsageError, match="--insecure"):
        run(*everywhere)
    with pytest.raises(UsageError, match="--insecure"):
        run(*everywhere, *TLS)  # encrypted, and open to everybody
    with pytest.raises(UsageError, match=r"the teacher's HTTP on 0\.0\.0\.0 can be reached"):
        run("--model", "m", "--http", "0.0.0.0:8000")
    assert not served
    for flags in (("--insecure",), ("--tokens", "t"), (*TLS, "--tls-ca", "ca")):
        run(*everywhere, *flags)
    assert [config.server.host for config in served] == ["0.0.0.0"] * 3
    assert [config.insecure for config in served] == [True, False, False]
    assert [config.server.security for config in served] == [
        None,
        ServerSecurity(tokens_file=Path("t")),
        ServerSecurity(TlsFiles(Path("c"), Path("k"), Path("ca"))),
    ]


def test_secrets_are_files(
    served: list[TeacherConfig],
) -> None:
    run("--model", "m", env={"EDL_TOKENS": "t", "EDL_TLS_CERT": "c", "EDL_TLS_KEY": "k"})
    assert served[0].server.security == ServerSecurity(TlsFiles(Path("c"), Path("k")), Path("t"))
    for half in (("--tls-cert", "c"), ("--tls-ca", "ca")):
        with pytest.raises(UsageError):
            run("--model", "m", *half)


@pytest.mark.parametrize(
    "arguments", [(), ("--model", "m", "--slots", "0"), ("--model", "m", "--port", "65536")]
)
def test_misuse_exits_with_2(arguments: tuple[str, ...], served: list[TeacherConfig]) -> None:
    assert runner.invoke(app, ["serve", *arguments]).exit_code == 2
    assert not served


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("resnet101/", "resnet101"),
        ("models/net.json", "net"),
        ("models/net", "net"),
        ("my.nets:resnet", "resnet"),
        ("/", "model"),
    ],
)
def test_the_default_name_of_a_model(model: str, name: str) -> None:
    assert model_name(model) == name


def _teacher(**settings: Any) -> TeacherConfig:
    return TeacherConfig("s", PredictorConfig("m:f"), **settings)


@pytest.mark.parametrize(
    "names",
    [
        {"service": "a b"},
        {"service": ""},
        {"teacher_id": "a b"},
        {"advertise": "käse"},
        {"advertise": "host:http"},
    ],
)
def test_wrong_names_are_refused_at_once(
    names: dict[str, str],
) -> None:
    config = replace(_teacher(coordinator="redis://127.0.0.1:1"), **names)  # type: ignore[arg-type]
    progress: list[str] = []
    with pytest.raises(UsageError):
        serving.serve(config, Stop(), on_ready=progress.append, on_progress=progress.append)
    assert progress == []


def test_wrong_configurations_are_refused() -> None:
    for make in (
        lambda: PredictorConfig("m", threads=0),
        lambda: PredictorConfig("m", micro_batch=0),
        lambda: PredictorConfig("m", precision="fp8"),
        lambda: ServerConfig(slots=0),
        lambda: ServerConfig(max_calls=0),
        lambda: ServerConfig(max_calls_per_peer=0),
        lambda: ServerConfig(receive_s=math.nan),
    ):
        with pytest.raises(UsageError):
            make()


@pytest.mark.parametrize("setting", ["ttl_s", "grace_s"])
@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_wrong_times_are_refused(setting: str, seconds: float) -> None:
    with pytest.raises(UsageError, match="seconds, not"):
        _teacher(**{setting: seconds})


def test_a_predictor_config_survives_json() -> None:
    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    config = PredictorConfig("m", "gpu:1", 2, None, inputs, cores=(0, 3))
    assert PredictorConfig.from_json(config.to_json()) == config


@pytest.mark.system
def test_importing_the_package_loads_no_framework() -> None:
    process = start(python("import sys, edl.teacher; print(*sys.modules)"))
    try:
        loaded = process.expect("edl.teacher", 60).string.split()
    finally:
        process.stop()
    assert not {"paddle", "grpc", "google.protobuf", "redis", "typer"} & set(loaded)


def address(advertise: str | None = None, host: str = "127.0.0.1") -> str:
    config = TeacherConfig("s", PredictorConfig("m"), ServerConfig(host), advertise=advertise)
    return advertised(config, 7000)


def test_the_bound_address_is_advertised_by_default() -> None:
    assert address() == "127.0.0.1:7000"
    assert address(host="0.0.0.0") == f"{socket.gethostname()}:7000"
    assert address("gpu7") == "gpu7:7000"
    assert address("gpu7", host="0.0.0.0") == "gpu7:7000"


def test_an_advertised_port_is_kept() -> None:
    assert address("proxy.example:443") == "proxy.example:443"
    assert address("[2001:db8::7]:443") == "[2001:db8::7]:443"


@pytest.mark.parametrize("text", ["2001:db8::7", "[2001:db8::7]"])
def test_an_ipv6_address_without_a_port(text: str) -> None:
    assert split(text) == (text, 0)
    assert address(text) == "[2001:db8::7]:7000"


@pytest.mark.parametrize(
    ("own", "pattern", "advertised"),
    [
        (["127.0.1.1", "10.1.2.3"], "*.edl.pod", "10-1-2-3.edl.pod:7000"),
        (["127.0.1.1", "fd00::1"], "*.edl.pod:443", "fd00--1.edl.pod:443"),
        (["127.0.1.1", "10.1.2.3"], "a*.edl.pod", "a*.edl.pod:7000"),
        (["fd00::1", "10.1.2.3"], "*.edl.pod", "10-1-2-3.edl.pod:7000"),
    ],
)
def test_a_star_becomes_the_name_of_the_pod(
    own: list[str], pattern: str, advertised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = [(0, 0, 0, "", (one, 0)) for one in own]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert address(pattern, host="0.0.0.0") == advertised


def test_a_star_needs_an_address_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(0, 0, 0, "", ("127.0.1.1", 0)), (0, 0, 0, "", ("fe80::1%eth0", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(UsageError, match="none but loopback"):
        address("*.edl.pod")


@pytest.mark.parametrize("text", ["gpu7:", "gpu7:0", "gpu7:65536", "gpu7:http", ":443"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no address to advertise"):
        address(text)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("cpu")),
        ("cpu:3", Device("cpu", (3,))),
        ("cpu:0-2", Device("cpu", (0, 1, 2))),
        ("cpu:0-1+6+8-9", Device("cpu", (0, 1, 6, 8, 9))),
        ("gpu", Device("gpu:0")),
        ("gpu:2", Device("gpu:2")),
    ],
)
def test_devices_survive_their_text(text: str, device: Device) -> None:
    assert Device.parse(text) == device
    assert Device.parse(str(device)) == device


@pytest.mark.parametrize(
    "text",
    ["", "tpu", "cpu:", "cpu:x", "cpu:2-1", "cpu:-1", "cpu:1-", "gpu:", "gpu:-1", "cpu:0-99999999"],
)
def test_a_wrong_device_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write cpu, cpu:FIRST-LAST"):
        Device.parse(text)


def test_a_core_may_be_named_once() -> None:
    assert len(parse_devices("cpu, cpu,gpu:0,gpu:0")) == 4
    with pytest.raises(UsageError, match="core 1 stands there twice"):
        parse_devices("cpu:0-1,cpu:1-2")


def test_cores_set_the_threads() -> None:
    config = PredictorConfig("m", threads=3)
    assert config.on(Device()).threads == 3
    pinned = config.on(Device("cpu", (4, 5)))
    assert (pinned.device, pinned.cores, pinned.threads) == ("cpu", (4, 5), 2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_an_unavailable_core_is_refused() -> None:
    check_cores([Device("cpu", (min(os.sched_getaffinity(0)),)), Device("gpu:0")])
    with pytest.raises(UsageError, match="core 60000 cannot be used"):
        check_cores([Device("cpu", (60000,))])
