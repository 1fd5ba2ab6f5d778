"""`edl bench`: names, options, exit codes, and the form of every report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from edl.benchmarks import cli, ledger
from edl.benchmarks.report import Goal, Report
from edl.errors import UsageError


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command("bench")(cli.bench)
    return app


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the benchmark `ledger` was called with; its goal holds when `holds` is set."""
    called: dict[str, Any] = {"holds": True}

    def run(quick: bool) -> Report:
        called["quick"] = quick
        return Report([{"case": "x"}], [Goal.judge("g", int(called["holds"]), "==", 1)])

    monkeypatch.setattr(ledger, "run", run)
    return called


def test_help_lists_each_benchmark(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    names = cli.benchmarks()
    assert {"imports", "ledger"} <= set(names)
    assert not {"cli", "report", "__init__"} & set(names)
    for name, line in names.items():
        assert line
        assert f"{name}: {line}" in result.output


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no benchmark 'nope'; there are: .*imports.*ledger"):
        cli.run("nope")


def test_the_figures_are_written(app: typer.Typer, outcome: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(app, ["ledger", "--json", str(file), "--quick"])
    assert result.exit_code == 0, result.output
    assert outcome["quick"] is True
    written = json.loads(file.read_text())
    assert set(written) == {"machine", "rows", "goals"}
    assert written["goals"] == [{"name": "g", "value": 1, "op": "==", "limit": 1, "holds": True}]


@pytest.mark.parametrize(
    ("holds", "options", "code"), [(True, ["--check"], 0), (False, ["--check"], 1), (False, [], 0)]
)
def test_a_goal_that_does_not_hold_fails_only_a_check(
    app: typer.Typer, outcome: dict[str, Any], holds: bool, options: list[str], code: int
) -> None:
    outcome["holds"] = holds
    assert CliRunner().invoke(app, ["ledger", *options]).exit_code == code


def test_a_missing_folder_is_reported_before_the_work(
    app: typer.Typer, outcome: dict[str, Any], tmp_path: Path
) -> None:
    for file, ran in ((tmp_path / "no" / "f.json", False), (tmp_path, True)):
        result = CliRunner().invoke(app, ["ledger", "--json", str(file)])
        assert isinstance(result.exception, UsageError)
        assert ("quick" in outcome) == ran
