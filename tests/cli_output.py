"""What a command line says, run in the process of the test."""

from __future__ import annotations

import json
from typing import Any

import typer
from typer.testing import CliRunner, Result


def run(app: typer.Typer, *arguments: object) -> Result:
    """Run a command; errors that are no exit are raised."""
    return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)


def json_of(app: typer.Typer, *arguments: object) -> Any:
    """Run a command, which has to succeed, with `--json`; returns what it has printed."""
    result = run(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
