"""The runner of the tiers: what it selects, and the exit code that it makes of all parts."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from edl.tests import run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each pytest run, none of which takes place; each exits with 0.

    No environment is made either.
    """
    made: list[list[str]] = []

    def note(arguments: list[str], tier: run.Tier, limit_s: float) -> int:
        made.append(arguments)
        return 0

    monkeypatch.setattr(run, "_pytest", note)
    monkeypatch.setattr(run, "_make", lambda environments: 0)
    return made


def test_serial_tests_run_alone_and_first(
    calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["test", "-k", "ring"]) == 0
    alone, forks, spread = calls
    assert alone == ["(not nightly and not interop) and serial", "-k", "ring"]
    assert forks == ["(not nightly and not interop) and forks", "-k", "ring"]
    assert spread[0] == "(not nightly and not interop) and not serial and not forks"
    assert spread[1:3] == ["-n", str(run.WORKERS)]
    assert spread[-2:] == ["-k", "ring"]
    assert f"tier test: 0 s of {run.TIERS['test'].limit_s:.0f} s" in capsys.readouterr().out


def test_without_its_environments_no_test_of_a_tier_runs(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[tuple[str, ...]] = []

    def fail(environments: tuple[str, ...]) -> int:
        wanted.append(environments)
        return 1

    monkeypatch.setattr(run, "_make", fail)
    assert run.main(["interop"]) == 1
    assert wanted == [("all",)]
    assert calls == []
    assert run.main(["test"]) == 0
    assert wanted == [("all",)], "its few tests that need one make it"
    assert len(calls) == 3


@pytest.mark.parametrize("argv", [[], ["nope"]])
def test_a_wrong_tier_is_answered_with_the_known_ones(
    argv: list[str], calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(argv) == 2
    assert "test|nightly|interop" in capsys.readouterr().out
    assert calls == []


def test_a_tier_that_takes_too_long_fails(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.chain([0.0], itertools.repeat(run.TIERS["test"].limit_s + 1.0))
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr(run, "time", clock)
    assert run.main(["test"]) == 1


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0, 0], 0),
        ([5, 0, 0], 0),  # no serial tests
        ([0, 5, 5], 0),
        ([5, 5, 5], 5),  # nothing selected at all
        ([1, 0, 0], 1),
        ([0, 0, 1], 1),
        ([2, 0, 1], 2),
        ([5, 1, 0], 1),
    ],
)
def test_the_exit_code_of_all_parts(codes: list[int], code: int) -> None:
    assert run._worst(codes) == code


def test_what_hangs_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert run._python("timeit", "-n1", "-r1", "import time; time.sleep(60)", limit_s=1) == 124
    assert "ended, as it hangs" in capsys.readouterr().err
