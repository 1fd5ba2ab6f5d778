"""What of the command line means something to Paddle Serving, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl.errors import EdlError, UsageError
from edl.lifecycle import Stop
from edl.scheduler.batching import BatchRule
from edl.teacher import cli
from edl.teacher.config import PredictorConfig, ServerConfig, TeacherConfig
from edl.teacher.devices import Device
from edl.teacher.model import TensorSpec
from edl.teacher.paddle_serving import engine
from edl.teacher.paddle_serving.settings import check

PLAIN = TeacherConfig("net", PredictorConfig("models/net"), coordinator="redis://head")


def test_what_is_heeded_is_let_through() -> None:
    check(PLAIN)
    predictor = PredictorConfig(
        "m", threads=3, micro_batch=16, inputs=(TensorSpec("x", "FP32", (-1, 4)),), canary="net.npz"
    )
    check(
        TeacherConfig(
            "net",
            predictor,
            ServerConfig("::1", 9292, 8),
            "redis://head",
            "t1",
            "head:9292",
            ttl_s=1.0,
            grace_s=3.0,
            insecure=True,
            devices=(Device("gpu:1"),),
        )
    )


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"predictor": replace(PLAIN.predictor, backend="onnx")}, "--backend"),
        ({"predictor": replace(PLAIN.predictor, preprocess=("unit",))}, "--preprocess"),
        ({"predictor": replace(PLAIN.predictor, micro_batch=None)}, "name a number"),
        ({"predictor": replace(PLAIN.predictor, self_test=False)}, "--no-self-test"),
        ({"server": ServerConfig(http="0")}, "--http"),
        ({"server": ServerConfig(max_calls=3)}, "--max-calls"),
        ({"batching": BatchRule(max_samples=8)}, r"--batch-\*"),
        ({"deterministic": True}, "--deterministic"),
        ({"metrics_listen": "0"}, "--metrics-listen"),
        ({"devices": (Device(), Device())}, "one device"),
        ({"devices": (Device("cpu", (0, 1)),)}, "not bound to cores"),
        ({"coordinator": None}, "--coordinator"),
    ],
)
def test_what_would_not_be_heeded_is_refused_by_name(changed: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        check(replace(PLAIN, **changed))


@pytest.mark.parametrize(
    ("server", "insecure", "refused"),
    [
        (ServerConfig("127.0.0.1"), False, False),
        (ServerConfig("0.0.0.0"), False, True),
        (ServerConfig("10.1.2.3"), False, True),
        (ServerConfig("10.1.2.3"), True, False),
    ],
)
def test_it_listens_beyond_loopback_only_if_that_is_said(
    tmp_path: Path, server: ServerConfig, insecure: bool, refused: bool
) -> None:
    config = replace(PLAIN, server=server, insecure=insecure, coordinator="redis://127.0.0.1:1")
    words = "neither TLS nor tokens" if refused else "no model at"
    with pytest.raises(EdlError, match=words):
        engine.serve(
            config, Stop(), python=tmp_path / "python", on_ready=print, on_progress=lambda _: None
        )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--engine", "paddle-serving"), "--serving-python ENV/bin/python"),
        (("--engine", "triton"), "unknown engine 'triton'"),
        (("--serving-python", "env/bin/python"), "is for --engine paddle-serving"),
    ],
)
def test_misuse_of_the_flags_is_told(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(cli, "configure_logging", lambda verbose: None)
    result = CliRunner().invoke(cli.app, ["serve", "--model", "m", *flags])
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)


def test_the_interpreter_is_taken_as_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment's python is a link: followed, it would be that of no environment."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli, "configure_logging", lambda verbose: None)
    monkeypatch.setattr(engine, "serve", lambda config, stop, **named: seen.update(named))
    flags = ["--engine", "paddle-serving", "--serving-python", "env/bin/python"]
    result = CliRunner().invoke(cli.app, ["serve", "--model", "m", *flags])
    assert result.exit_code == 0
    assert seen["python"] == Path("env/bin/python").absolute()
