"""`edl student train` as a process sees it from within: what it lets go of when it cannot begin."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from edl.errors import UsageError
from edl.student import cli
from edl.student.settings import TrainSettings
from edl.student.supervisor.launcher import launched


def test_a_terminal_gets_its_cursor_back_when_a_training_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda: Console(file=shown, force_terminal=True))
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    job = tmp_path / "job.py"
    job.write_text("")
    settings = TrainSettings(str(job), "job", steps=1, coordinator="nowhere")
    with pytest.raises(UsageError):
        cli._supervise(settings, launched({}, "host"), None)
    hidden, again = "\x1b[?25l", "\x1b[?25h"
    assert shown.getvalue().count(hidden) == shown.getvalue().count(again) == 1
