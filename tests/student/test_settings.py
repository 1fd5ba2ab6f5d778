"""`TrainSettings` through JSON and what it refuses; `edl student train` that cannot begin."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edl.errors import UsageError
from edl.student import cli
from edl.student.settings import TrainSettings

URL = "redis://head:6379"


def settings(**more: Any) -> TrainSettings:
    return TrainSettings("/jobs/a.py", "a", **({"epochs": 1} | more))


def test_json_both_ways() -> None:
    given = settings(nodes=(1, 4), coordinator=URL, checkpoint="s3://runs/a", deal="static")
    assert TrainSettings.from_json(json.loads(json.dumps(given.to_json()))) == given
    alone = settings(teachers=("a:1", "b:2"), steps=9, amp="bfloat16", save_every_s=None)
    assert TrainSettings.from_json(json.loads(json.dumps(alone.to_json()))) == alone


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"spec": "job.py"}, "absolute path"),
        ({"job": "a job"}, "must be 1 to 64 of"),
        ({"epochs": None}, "give --epochs or --steps"),
        ({"epochs": 0}, "epochs is a number from 1"),
        ({"total_batch": 0}, "total_batch is a number from 1"),
        ({"seed": -1}, "seed is a number from 0"),
        ({"nodes": (2, 1)}, "1 <= MIN <= MAX"),
        ({"nodes": (0, 1)}, "1 <= MIN <= MAX"),
        ({"ranks_per_node": 5000}, "1 to 4096 ranks"),
        ({"nodes": (1, 4)}, "needs --coordinator"),
        ({"nodes": (1, 4), "coordinator": URL}, "needs --checkpoint"),
        ({"coordinator": URL, "teachers": ("a:1",)}, "not both"),
        ({"deal": "random"}, "deal is one of dynamic, static"),
        ({"amp": "int8"}, "amp is one of"),
        ({"lr_policy": "x"}, "lr_policy is one of"),
        ({"save_every_s": 0.0}, "above 0 seconds"),
        ({"hang_s": 0.0}, "above 0 seconds"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TrainSettings(**{"spec": "/jobs/a.py", "job": "a", "epochs": 1, **wrong})


def test_terminal_gets_its_cursor_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda: Console(file=shown, force_terminal=True))
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    monkeypatch.setattr(cli, "end_with_parent", lambda: None)
    monkeypatch.setattr(cli, "configure_logging", lambda verbose: None)
    job = tmp_path / "job.py"
    job.write_text("")
    arguments = ["train", str(job), "--steps", "1", "--coordinator", "nowhere"]
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, UsageError)
    hidden, again = "\x1b[?25l", "\x1b[?25h"
    assert shown.getvalue().count(hidden) == shown.getvalue().count(again) == 1
