"""The runner of the tiers: what it selects, when it is too slow, and its exit code."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest

from edl.benchmarks.report import REFERENCE_SPEED_S
from edl.tests import run
from edl.tests.waiting import DEADLINE_S

Calls = list[list[str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The arguments of each pytest run, none of which takes place; each exits with 0."""
    made: Calls = []

    def note(arguments: list[str], tier: str, limit_s: float) -> int:
        made.append(arguments)
        return 0

    monkeypatch.setattr(run, "_pytest", note)
    monkeypatch.delenv("CI", raising=False)
    return made


def test_parts_run_one_after_another(calls: Calls) -> None:
    assert run.main(["test-system", "-k", "ring"]) == 0
    parts = run.TIERS["test-system"].parts
    assert [(call[0], call[-1]) for call in calls] == [(part, "ring") for part in parts]


def test_no_test_runs_without_a_tier_and_its_environments(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_python", lambda program, *names: int(names == ("all",)))
    assert run.main(["interop"]) == 1
    assert run.main([]) == run.main(["nope"]) == 2
    assert calls == []


@pytest.mark.parametrize(
    ("ci", "slowness", "factor", "code"),
    [
        ("", 1.0, 9.0, 0),
        ("true", 1.0, 1.9, 0),
        ("true", 1.0, 2.1, 1),
        ("true", 0.5, 1.9, 0),
        ("true", 3.0, 5.9, 0),
        ("true", 3.0, 6.1, 1),
    ],
)
def test_a_tier_fails_in_ci_only_and_at_twice_its_target_on_a_machine_as_fast_as_this(
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
    slowness: float,
    factor: float,
    code: int,
) -> None:
    monkeypatch.setenv("CI", ci)
    ticks = itertools.chain([0.0], itertools.repeat(run.TIERS["test"].target_s * factor))
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(run, "speed_program_s", lambda: slowness * REFERENCE_SPEED_S)
    assert run.main(["test"]) == code


def test_the_speed_of_the_machine_is_the_median_of_all_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = threading.Event()
    factors = iter((9.0, 3.0, 2.0))

    def measure() -> float:
        if (factor := next(factors, None)) is None:
            measured.set()
        return REFERENCE_SPEED_S * (factor or 3.0)

    monkeypatch.setattr(run, "speed_program_s", measure)
    monkeypatch.setattr(run, "MEASURE_EVERY_S", 0.001)
    with run.SpeedMeter() as meter:
        assert measured.wait(DEADLINE_S)
    assert meter.slowness == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([5, 0], 0), ([5, 5], 5), ([1, 0], 1), ([0, 1], 1), ([2, 1], 2), ([5, 1], 1)],
)
def test_the_exit_code_of_all_parts(
    monkeypatch: pytest.MonkeyPatch, codes: list[int], code: int
) -> None:
    left = iter(codes)
    monkeypatch.setattr(run, "_pytest", lambda arguments, tier, limit_s: next(left))
    assert run.main(["test-system"]) == code
