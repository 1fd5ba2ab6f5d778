"""What a command line says, run in the process of the test; and what a terminal shows."""

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
    """Run a command; errors that are no exit are raised."""
    return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)


def output_of(app: typer.Typer, *arguments: object) -> str:
    """Run a command, which has to succeed; returns what it has printed."""
    result = run(app, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def json_of(app: typer.Typer, *arguments: object) -> Any:
    """Run a command, which has to succeed, with `--json`; returns what it has printed."""
    result = run(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal_of(app: typer.Typer, *arguments: object) -> str:
    """The UsageError by which a command ends."""
    with pytest.raises(UsageError) as raised:
        run(app, *arguments)
    return str(raised.value)


def printed(shown: RenderableType, width: int = 160) -> str:
    """What a console of this width shows."""
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(shown)
    return console.export_text()
