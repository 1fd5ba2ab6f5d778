"""Paddle Serving: its environment, the options that it takes, and the files that it is given."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import EdlError, ModelError, ProcessFailed, UsageError
from edl.runtime.lifecycle import Stop
from edl.scheduler.batching import BatchRule
from edl.teacher import cli
from edl.teacher.config import Device, PredictorConfig, ServerConfig, TeacherConfig
from edl.teacher.paddle_serving import engine, environment
from edl.teacher.paddle_serving.engine import ServingModel, check_settings, write_configuration
from edl.teacher.paddle_serving.environment import main, make, recipe

PLAIN = TeacherConfig("net", PredictorConfig("models/net"), coordinator="redis://head")


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"predictor": replace(PLAIN.predictor, backend="onnx")}, "--backend"),
        ({"predictor": replace(PLAIN.predictor, preprocess=("unit",))}, "--preprocess"),
        ({"predictor": replace(PLAIN.predictor, micro_batch=None)}, "name a number"),
        ({"predictor": replace(PLAIN.predictor, self_test=False)}, "--no-self-test"),
        ({"server": ServerConfig(http="0")}, "--http"),
        ({"server": ServerConfig(max_calls=3)}, "--limit calls="),
        ({"batching": BatchRule(max_samples=8)}, "--batch"),
        ({"deterministic": True}, "--deterministic"),
        ({"metrics_listen": "0"}, "--metrics-listen"),
        ({"devices": (Device(), Device())}, "one device"),
        ({"devices": (Device("cpu", (0, 1)),)}, "not bound to cores"),
        ({"coordinator": None}, "--redis"),
    ],
)
def test_unsupported_options_are_refused(changed: dict[str, Any], flag: str) -> None:
    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    predictor = PredictorConfig("m", threads=3, micro_batch=16, inputs=inputs, canary="net.npz")
    more: dict[str, Any] = {"teacher_id": "t1", "advertise": "head:9292", "insecure": True}
    server = ServerConfig("::1", 9292, 8)
    check_settings(
        replace(PLAIN, predictor=predictor, devices=(Device("gpu:1"),), server=server, **more)
    )
    check_settings(replace(PLAIN, beat_relay=Path("relay")))  # from the agent that starts it
    with pytest.raises(UsageError, match=flag):
        check_settings(replace(PLAIN, **changed))


@pytest.mark.parametrize(
    ("host", "insecure", "words"),
    [
        ("127.0.0.1", False, "no model at"),
        ("10.1.2.3", False, "neither TLS nor tokens"),
        ("10.1.2.3", True, "no model at"),
    ],
)
def test_public_hosts_need_insecure(tmp_path: Path, host: str, insecure: bool, words: str) -> None:
    config = replace(PLAIN, server=ServerConfig(host), insecure=insecure)
    with pytest.raises(EdlError, match=words):
        engine.serve(
            config, Stop(), python=tmp_path / "python", on_ready=print, on_progress=lambda _: None
        )


def test_the_interpreter_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment's python is a link: followed, it would be that of no environment."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli, "configure_logging", lambda *_: None)
    monkeypatch.setattr(engine, "serve", lambda config, stop, **named: seen.update(named))
    flags = ["--engine", "paddle-serving,python=env/bin/python"]
    result = CliRunner().invoke(cli.app, ["serve", "--model", "m", *flags])
    assert result.exit_code == 0
    assert seen["python"] == Path("env/bin/python").absolute()


@pytest.fixture
def model(tmp_path: Path) -> ServingModel:
    for name in ("net.pdmodel", "net.pdiparams"):
        (tmp_path / name).write_text(name)
    return ServingModel(
        tmp_path / "net.pdmodel",
        tmp_path / "net.pdiparams",
        "3.3.1",
        (TensorSpec("image", "UINT8", (-1, 3, -1, 8)), TensorSpec('a"b', "INT64", (-1,))),
        (TensorSpec("y", "FP32", (-1, 10)),),
    )


def test_files_of_a_server(model: ServingModel, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, model, port=4321, calls=6, device="cpu", threads=3)
    config = json.loads(file.read_text())
    assert (config["rpc_port"], config["worker_num"]) == (4321, 6)
    assert "http_port" not in config  # upstream's gateway listens on every interface
    local = config["op"]["model"]["local_service_conf"]
    assert (local["device_type"], local["devices"], local["thread_num"]) == (0, "", 3)
    assert local["fetch_list"] == ["y"]
    beside = Path(local["model_config"])
    assert (beside / "net.pdmodel").read_text() == "net.pdmodel"
    assert (beside / "net.pdiparams").read_text() == "net.pdiparams"
    lines = (beside / "serving_server_conf.prototxt").read_text().split("\n")
    assert lines[:8] == [
        "feed_var {", '  name: "image"', '  alias_name: "image"', "  is_lod_tensor: false",
        "  feed_type: 7", "  shape: 3", "  shape: -1", "  shape: 8",
    ]  # fmt: skip
    assert '  name: "a\\"b"' in lines
    assert lines.count("fetch_var {") == 1
    assert "  fetch_type: 1" in lines
    for name in ("gpu", "odd"):
        (tmp_path / name).mkdir()
    file = write_configuration(tmp_path / "gpu", model, port=1, calls=1, device="gpu:2", threads=1)
    local = json.loads(file.read_text())["op"]["model"]["local_service_conf"]
    assert (local["device_type"], local["devices"], local["use_mkldnn"]) == (1, "2", False)
    odd = replace(model, outputs=(TensorSpec("y", "UINT64", (-1, 2)),))
    with pytest.raises(ModelError, match="'y' is UINT64, which Paddle Serving does not support"):
        write_configuration(tmp_path / "odd", odd, port=1, calls=1, device="cpu", threads=1)


class Steps:
    """Stands in for venv and pip: keeps what was asked, and makes the folders they would make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken: list[tuple[str, ...]] = []
        self.fails = ""

    def __call__(self, name: str, *argv: str, cwd: Path | None = None) -> None:
        self.taken.append((name, *argv))
        if name == self.fails:
            raise ProcessFailed(f"{name} ended with exit code 1: no such release")
        if name == "venv":
            (self.folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
            (self.folder / "bin").mkdir()
            (self.folder / "bin" / "python").symlink_to(sys.executable)
        if "--target" in argv:
            client = Path(argv[argv.index("--target") + 1]) / "paddle_serving_client"
            client.mkdir()
            (client / "httpclient.py").write_text("")
            (client / "serving_client.so").write_text("")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps(tmp_path / "serving")
    monkeypatch.setattr(environment, "_run", steps)
    return steps


def test_an_environment_is_made_once(steps: Steps, tmp_path: Path) -> None:
    told: list[str] = []
    python = make(steps.folder, recipe(), told.append)
    assert python == steps.folder / "bin" / "python"
    assert [name for name, *_ in steps.taken] == ["venv", "pip", "pip", "pip", "check"]
    assert ["--no-deps" in step for step in steps.taken[1:4]] == [False, True, True]
    site = steps.folder / "lib" / "python3.11" / "site-packages"
    assert [file.name for file in (site / "paddle_serving_client").iterdir()] == ["httpclient.py"]
    compile((site / "sitecustomize.py").read_text(), "sitecustomize.py", "exec")
    assert str(python) in told[-1]
    steps.taken.clear()
    assert make(steps.folder, recipe(), told.append) == python
    assert not steps.taken
    assert "up to date" in told[-1]


@pytest.mark.parametrize("step", ["venv", "pip", "check"])
def test_a_failed_step_makes_it_again(steps: Steps, step: str) -> None:
    steps.fails = step
    with pytest.raises(ProcessFailed, match="no such release"):
        make(steps.folder, recipe(), print)
    steps.fails = ""
    steps.taken.clear()
    make(steps.folder, recipe(), print)
    assert [name for name, *_ in steps.taken] == ["venv", "pip", "pip", "pip", "check"]


def test_other_folders_are_left_alone(steps: Steps) -> None:
    steps.folder.mkdir()
    (steps.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds something else"):
        make(steps.folder, recipe(), print)
    assert (steps.folder / "thesis.tex").exists()
    assert not steps.taken


def test_the_command_and_its_errors(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(steps.folder)]) == 0
    steps.taken.clear()
    assert main([str(steps.folder), "--gpu"]) == 0, "another recipe makes it anew"
    assert "paddle-serving-server-gpu==0.9.0.post1028" in steps.taken[2]
    assert "paddlepaddle-gpu==2.6.2" in capsys.readouterr().out
    steps.folder = steps.folder.with_name("other")
    steps.fails = "pip"
    assert main([str(steps.folder)]) == 1
    assert capsys.readouterr().err == "edl: pip ended with exit code 1: no such release\n"
