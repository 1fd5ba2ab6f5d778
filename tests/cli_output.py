"""Output of command lines that run in the process of the test, and of renderables."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import typer
from rich.console import Console, RenderableType
from typer.testing import CliRunner, Result

from edl.runtime.errors import UsageError


def run(app: typer.Typer, *arguments: object) -> Result:
    """Run a command; raise its exceptions other than exits."""
    return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)


def output_of(app: typer.Typer, *arguments: object) -> str:
    """Run a command, check that it succeeds, and return its output."""
    result = run(app, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def json_of(app: typer.Typer, *arguments: object) -> Any:
    """Run a command with `--json`, check that it succeeds, and return its parsed stdout."""
    result = run(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal_of(app: typer.Typer, *arguments: object) -> str:
    """Run a command, check that it raises UsageError, and return the message."""
    with pytest.raises(UsageError) as raised:
        run(app, *arguments)
    return str(raised.value)


def printed(shown: RenderableType, width: int = 160) -> str:
    """Return the text that a console of this width shows."""
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(shown)
    return console.export_text()
