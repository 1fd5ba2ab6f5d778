"""`edl bench`: names, options, exit codes; and that the two benchmarks measure what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from edl.benchmarks import cli, imports, ledger
from edl.benchmarks.report import Goal, Report
from edl.errors import ProcessFailed, UsageError


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


def test_help_lists_each_benchmark_with_what_it_measures(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    names = cli.benchmarks()
    assert {"imports", "ledger"} <= set(names)
    assert not {"cli", "report", "__init__"} & set(names)
    for name, line in names.items():
        assert f"{name}: {line}" in result.output


def test_every_benchmark_says_what_it_measures() -> None:
    assert all(line.endswith(".") for line in cli.benchmarks().values())


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


def test_a_file_that_cannot_be_written_is_reported_before_the_work(
    app: typer.Typer, outcome: dict[str, Any], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["ledger", "--json", str(tmp_path / "no" / "f.json")])
    assert isinstance(result.exception, UsageError)
    assert "quick" not in outcome
    result = CliRunner().invoke(app, ["ledger", "--json", str(tmp_path)])
    assert isinstance(result.exception, UsageError)


@pytest.mark.parametrize("loss_every", [0, 7])
def test_the_ledger_stream_carries_every_batch_to_the_student(loss_every: int) -> None:
    case = ledger.Case("whole batches", loss_every)
    stream = ledger.Stream(200, case)
    events = stream.drive()
    losses = 200 // loss_every if loss_every else 0
    resends = stream._ledger.resends
    assert events == 8 + 3 * 200 + 2 * losses
    assert (resends > 0) == (losses > 0)
    assert stream._ledger.deliverable == stream._ledger.unlabelled == 0
    assert ledger.events_per_s(50, case) > 0


@pytest.mark.parametrize("case", ledger.CASES, ids=lambda case: case.name)
def test_each_case_of_the_ledger_is_what_it_is_called(case: ledger.Case) -> None:
    stream = ledger.Stream(400, case)
    stream.drive()
    first_sends = stream._ledger.sent - stream._ledger.resends
    if case.most_rows is None:
        assert first_sends == 400
    else:  # the first and the last ones are as large as what there was
        usual = 400 * ledger.ROWS / case.most_rows
        assert first_sends == pytest.approx(usual, rel=0.25)


def test_an_import_is_measured_in_a_fresh_interpreter(tmp_path: Path) -> None:
    light, heavy = imports.measure("json", tmp_path), imports.measure("grpc", tmp_path)
    assert light.heavy == frozenset()
    assert heavy.heavy == {"grpc"}
    assert 0 < light.cpu_s < heavy.cpu_s
    with pytest.raises(ProcessFailed, match="No module named 'no_such_module'"):
        imports.measure("no_such_module", tmp_path)
