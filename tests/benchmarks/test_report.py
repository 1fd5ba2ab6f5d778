"""`edl bench`: names, options, exit codes, and the form of every report."""

from __future__ import annotations

import io
import json
import math
import os
import platform
import random
import signal
import statistics
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edl.benchmarks import cli, ledger, report
from edl.benchmarks.paper.tables import ReproductionReport
from edl.benchmarks.report import (
    BenchmarkReport,
    Estimate,
    Goal,
    Op,
    interleaved,
    machine,
    on_one_core,
    quantile,
)
from edl.cli import command_line
from edl.runtime.errors import UsageError
from edl.tests.cli_output import run

EDL = command_line("bench")


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the benchmark `ledger` was called with; its goal holds when `holds` is set."""
    called: dict[str, Any] = {"holds": True}

    def measure(quick: bool) -> BenchmarkReport:
        called["quick"] = quick
        return BenchmarkReport([{"case": "x"}], [Goal.judge("g", int(called["holds"]), "==", 1)])

    monkeypatch.setattr(ledger, "run", measure)
    return called


def test_the_benchmarks_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = run(EDL, "bench", "--help").output
    names = cli.benchmarks()
    assert {"imports", "ledger"} <= set(names)
    assert not {"cli", "report", "__init__"} & set(names)
    for name, line in names.items():
        assert line
        assert f"{name}: {line}" in listed
    with pytest.raises(UsageError, match=r"no benchmark 'nope'; there are: .*imports.*ledger"):
        cli.run("nope")


@pytest.mark.parametrize(
    ("holds", "options", "code"), [(True, ["--check"], 0), (False, ["--check"], 1), (False, [], 0)]
)
def test_figures_are_written_and_a_goal_that_does_not_hold_fails_only_a_check(
    outcome: dict[str, Any], tmp_path: Path, holds: bool, options: list[str], code: int
) -> None:
    outcome["holds"] = holds
    file = tmp_path / "figures.json"
    for more in ([], ["--json", file]):
        assert run(EDL, "bench", "ledger", "--quick", *options, *more).exit_code == code
    assert outcome["quick"] is True
    assert set(json.loads(file.read_text())) == {"machine", "rows", "goals"}


def test_figures_that_json_has_not_are_null(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    goals = [
        Goal.judge("never", math.inf, "<=", 1.0),
        Goal.judge("interval", Estimate(2.0, 0.5, math.inf), "<=", 1.0),
    ]
    report = BenchmarkReport([{"case": "x", "p99_s": math.inf, "ratio": math.nan}], goals)
    monkeypatch.setattr(ledger, "run", lambda quick: report)
    file = tmp_path / "figures.json"
    run(EDL, "bench", "ledger", "--json", file)
    written = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert written["rows"] == [{"case": "x", "p99_s": None, "ratio": None}]
    never, interval = written["goals"]
    assert (never["value"], never["holds"]) == (None, False)
    assert (interval["interval"], interval["holds"]) == ([0.5, None], True)


def test_tables_are_not_folded_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    row = {f"column {number}": 20 * "x" for number in range(9)}
    monkeypatch.setattr(ledger, "run", lambda quick: BenchmarkReport([row]))
    lines = run(EDL, "bench", "ledger").output.splitlines()
    assert max(line.count(20 * "x") for line in lines) == 9


def test_a_file_that_cannot_be_written_is_reported_before_the_work(
    outcome: dict[str, Any], tmp_path: Path
) -> None:
    for file, message in ((tmp_path / "no" / "f.json", "no folder"), (tmp_path, "a folder")):
        with pytest.raises(UsageError, match=message):
            run(EDL, "bench", "ledger", "--json", file)
        assert "quick" not in outcome


def test_sigterm_ends_a_benchmark_by_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that a failure does not end the tests
    monkeypatch.setattr(ledger, "run", lambda quick: signal.raise_signal(signal.SIGTERM))
    assert run(EDL, "bench", "ledger").exit_code == 128 + signal.SIGTERM


ENDS_BELOW = Estimate(0.9, 0.8, 0.95)
AROUND_ONE = Estimate(1.1, 0.9, 1.3)
BEGINS_ABOVE = Estimate(1.1, 1.05, 1.2)


@pytest.mark.parametrize(
    ("op", "holds"),
    [
        (">=", [False, True, True, False, True, True]),
        ("<=", [True, True, False, True, True, False]),
        ("==", [False, True, False, False, True, False]),
    ],
)
def test_a_goal_fails_only_when_its_interval_excludes_the_limit(op: Op, holds: list[bool]) -> None:
    """The median of AROUND_ONE breaks the limit of `<=`, but its interval does not exclude it."""
    values = (ENDS_BELOW, AROUND_ONE, BEGINS_ABOVE, 0.99, 1, 1.01)
    assert [Goal.judge("x", value, op, 1.0).holds for value in values] == holds


def test_the_interval_of_a_median_covers_it_about_as_often_as_it_says(rng: random.Random) -> None:
    hits = 0
    for _ in range(40):
        samples = [rng.gauss(10.0, 1.0) for _ in range(25)]
        estimate = Estimate.of(samples)
        assert estimate == Estimate.of(samples)
        assert estimate.low <= estimate.value == statistics.median(samples) <= estimate.high
        hits += estimate.low <= 10.0 <= estimate.high
    assert hits >= 30  # 38 expected; fewer than 30 practically never come by chance
    with pytest.raises(ValueError, match="needs 15 rounds, not 14"):
        Estimate.of([1.0] * 14)


def test_measurements_are_taken_by_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    ticks = count()

    def measure(name: str) -> float:
        order.append(name)
        return float(next(ticks))

    taken = interleaved(lambda: measure("a"), lambda: measure("b"), rounds=3)
    assert "".join(order) == "abbaabba"
    assert taken == [[3.0, 4.0, 7.0], [2.0, 5.0, 6.0]]


def test_measurements_stay_on_one_core_and_the_others_come_back() -> None:
    before, ticks = os.sched_getaffinity(0), count(1)

    def measure(factor: float) -> float:
        assert len(os.sched_getaffinity(0)) == 1
        return float(factor * next(ticks) ** 0.01)  # both share a drift

    estimate = Estimate.of_ratio(*interleaved(lambda: measure(3.0), lambda: measure(1.5)))
    assert estimate.value == pytest.approx(2.0, rel=0.02)
    assert os.sched_getaffinity(0) == before
    with pytest.raises(RuntimeError), on_one_core():
        raise RuntimeError
    assert os.sched_getaffinity(0) == before


def test_the_machine_is_described_without_its_name_or_paths() -> None:
    described = machine()
    assert {"cpu", "cores", "memory_gib", "os", "python", "libraries", "slowness"} == set(described)
    assert 0.1 < described["slowness"] < 100.0
    assert platform.node() not in described["os"].split()
    assert os.path.expanduser("~") + "/" not in json.dumps(described)


def shown(report: BenchmarkReport | ReproductionReport, width: int = 150) -> str:
    out = io.StringIO()
    report.show(Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize(
    ("slow", "op", "value", "limit", "holds"),
    [
        (3.0, "<=", 2.9, 3.0, True), (3.0, "<=", 3.1, 3.0, False), (0.5, "<=", 1.1, 1.0, False),
        (4.0, ">=", 0.26, 0.25, True), (4.0, ">=", 0.24, 0.25, False), (0.5, ">=", 0.9, 1.0, False),
    ],
)  # fmt: skip
def test_the_limit_of_a_speed_follows_that_of_the_machine(
    slow: float, op: Any, value: float, limit: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a faster machine has the same limits as the reference."""
    monkeypatch.setattr(report, "speed_program_s", lambda: slow * report.REFERENCE_SPEED_S)
    report.slowness.cache_clear()
    goal, described = Goal.judge_speed("speed", value, op, 1.0), machine()
    report.slowness.cache_clear()
    assert (goal.limit, goal.reference_limit, goal.holds) == (limit, 1.0, holds)
    assert goal.to_json()["reference_limit"] == 1.0
    assert described["slowness"] == slow
    assert ("reference: 1" in shown(BenchmarkReport([], [goal]))) == (limit != 1.0)


def test_quantiles_from_the_least_to_the_greatest_sample() -> None:
    samples = [3.0, 1.0, 4.0, 2.0]
    parts = (0.0, 0.1, 0.25, 0.5, 0.99, 1.0)
    assert [quantile(samples, part) for part in parts] == [1.0, 1.0, 1.0, 2.0, 4.0, 4.0]
    assert quantile([], 0.5) == math.inf


def test_a_report_is_shown_and_written_whole() -> None:
    rows: list[Any] = [
        {"case": "a", "per_s": 1234567.0, "ok": True},
        {"case": "b", "per_s": 0.25, "ok": False},
    ]
    goals = [Goal.judge("speed", AROUND_ONE, ">=", 1.0), Goal.judge("errors", 3, "==", 0)]
    report = BenchmarkReport(rows, goals, {"cpu": "Z80", "cores": 1, "os": "CP/M", "slowness": 2.5})
    speed = {"name": "speed", "value": 1.1, "op": ">=", "limit": 1.0, "holds": True}
    errors = {"name": "errors", "value": 3, "op": "==", "limit": 0, "holds": False}
    assert json.loads(json.dumps(report.to_json())) == {
        "machine": report.machine,
        "rows": rows,
        "goals": [speed | {"interval": [0.9, 1.3]}, errors],
    }
    for part in ("1,234,567", "0.25", "0.9 .. 1.3", "speed", "errors", "2.5 times the reference"):
        assert part in shown(report)
    without = BenchmarkReport(rows)
    assert (report.holds, without.holds, "goal" in shown(without)) == (False, True, False)
