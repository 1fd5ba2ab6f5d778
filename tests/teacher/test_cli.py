"""The command line: its help, what it turns into, and misuse."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl import teacher
from edl.errors import UsageError
from edl.lifecycle import Stop
from edl.proto.security import ServerSecurity, TlsFiles
from edl.scheduler.batching import BatchRule
from edl.supervise import start
from edl.teacher import cli, over_http, serving
from edl.teacher.cli import app, model_name
from edl.teacher.config import PredictorConfig, ServerConfig, TeacherConfig
from edl.teacher.devices import Device
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
    assert served == [
        TeacherConfig(
            service="resnet101",
            predictor=PredictorConfig("models/resnet101/", "cpu", 1, 8, ()),
            server=ServerConfig("127.0.0.1", 0, 4, 256 << 20, 256, 64, 10.0, None, "127.0.0.1:0"),
            coordinator=None,
            teacher_id=None,
            advertise=None,
            ttl_s=6.0,
            grace_s=30.0,
            metrics_listen=None,
            insecure=False,
            devices=(Device(),),
            batching=BatchRule(),
            deterministic=False,
        )
    ]


def test_how_the_model_is_run(served: list[TeacherConfig]) -> None:
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


def test_what_a_model_has_to_show(served: list[TeacherConfig]) -> None:
    run("--model", "m:f", "--canary", "good.canary")
    run("--model", "m:f", env={"EDL_NO_SELF_TEST": "1"})
    assert [config.predictor.self_test for config in served] == [True, False]
    assert [config.predictor.canary for config in served] == ["good.canary", None]
    predictor = served[0].predictor
    assert PredictorConfig.from_json(predictor.to_json()) == predictor
    with pytest.raises(UsageError, match="leave --no-self-test out"):
        run("--model", "m:f", "--canary", "good.canary", "--no-self-test")


def test_how_requests_meet_devices(served: list[TeacherConfig]) -> None:
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
def test_sizes_and_devices_that_cannot_be_are_refused(
    arguments: tuple[str, ...], served: list[TeacherConfig]
) -> None:
    with pytest.raises(UsageError):
        run("--model", "m:f", *arguments)
    assert not served


def test_a_deterministic_teacher_may_have_several_equal_devices(
    served: list[TeacherConfig],
) -> None:
    run("--model", "m:f", "--deterministic", "--devices", "cpu:0-1,cpu:2-3")
    assert served[0].deterministic


def test_a_flag_comes_before_the_environment_and_that_before_the_default(
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
def test_http_is_spoken_on_the_host_of_grpc_or_where_it_is_asked_for(
    arguments: tuple[str, ...], http: str | None, served: list[TeacherConfig]
) -> None:
    run("--model", "m", *arguments)
    assert served[0].server.http == http


def test_http_is_off_by_itself_where_what_it_needs_is_missing(
    served: list[TeacherConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_http, "_NEEDED", ("starlette", "edl_no_such_package"))
    run("--model", "m")
    run("--model", "m", "--http", "0")  # asked for: the server says what is missing
    assert [config.server.http for config in served] == [None, "127.0.0.1:0"]


def test_http_beyond_loopback_only_when_asked_for(served: list[TeacherConfig]) -> None:
    with pytest.raises(UsageError, match=r"the teacher's HTTP on 0\.0\.0\.0 can be reached"):
        run("--model", "m", "--http", "0.0.0.0:8000")


def test_beyond_loopback_only_when_asked_for(served: list[TeacherConfig]) -> None:
    with pytest.raises(UsageError, match="--insecure"):
        run("--model", "m", "--host", "0.0.0.0")
    assert not served
    run("--model", "m", "--host", "0.0.0.0", "--insecure")
    assert served[0].server.host == "0.0.0.0"
    assert served[0].insecure


def test_or_when_somebody_is_asked_who_calls(served: list[TeacherConfig]) -> None:
    run("--model", "m", "--host", "0.0.0.0", "--tokens", "t")
    run("--model", "m", "--host", "0.0.0.0", *TLS, "--tls-ca", "ca")
    with pytest.raises(UsageError, match="--insecure"):
        run("--model", "m", "--host", "0.0.0.0", *TLS)  # encrypted, and open to everybody
    assert [config.server.security for config in served] == [
        ServerSecurity(tokens_file=Path("t")),
        ServerSecurity(TlsFiles(Path("c"), Path("k"), Path("ca"))),
    ]


def test_no_secret_is_an_argument_and_files_come_from_the_environment_too(
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
def test_misuse_ends_with_2(arguments: tuple[str, ...], served: list[TeacherConfig]) -> None:
    assert runner.invoke(app, ["serve", *arguments]).exit_code == 2
    assert not served


def test_every_option_says_what_it_is_for() -> None:
    result = runner.invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 0
    options = re.findall(r"(--[a-z-]+)", result.output)
    assert {"--model", "--coordinator", "--slots", "--grace", "--insecure"} <= set(options)
    assert {"--tls-cert", "--tls-key", "--tls-ca", "--tokens", "--metrics-listen"} <= set(options)
    assert "EDL_COORDINATOR" in result.output
    for scheme in ("redis://", "rediss://", "unix://", "redis+sentinel://", "password_file="):
        assert scheme in result.output


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
def test_a_model_is_called_after_itself(model: str, name: str) -> None:
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
def test_names_that_cannot_be_registered_are_refused_before_the_model_is_loaded(
    names: dict[str, str],
) -> None:
    config = replace(_teacher(coordinator="redis://127.0.0.1:1"), **names)  # type: ignore[arg-type]
    progress: list[str] = []
    with pytest.raises(UsageError):
        serving.serve(config, Stop(), on_ready=progress.append, on_progress=progress.append)
    assert progress == []


def test_configurations_that_cannot_work_are_refused() -> None:
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
def test_times_that_nobody_can_wait_for_are_refused(setting: str, seconds: float) -> None:
    with pytest.raises(UsageError, match="seconds, not"):
        _teacher(**{setting: seconds})


def test_a_predictor_config_survives_json() -> None:
    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    config = PredictorConfig("m", "gpu:1", 2, None, inputs, cores=(0, 3))
    assert PredictorConfig.from_json(config.to_json()) == config


def test_the_face_loads_no_framework_and_no_wire_library() -> None:
    process = start(python("import sys, edl.teacher; print(*sys.modules)"))
    try:
        loaded = process.expect("edl.teacher", 60).string.split()
    finally:
        process.stop()
    assert not {"paddle", "grpc", "google.protobuf", "redis", "typer"} & set(loaded)


def test_the_face_of_the_folder() -> None:
    assert sorted(teacher.__all__) == [
        "Backend",
        "ModelSpec",
        "PredictorConfig",
        "ServerConfig",
        "TeacherConfig",
        "TensorSpec",
        "open_backend",
        "run_in_micro_batches",
    ]
    assert all(hasattr(teacher, name) for name in teacher.__all__)
