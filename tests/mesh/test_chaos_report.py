"""What a chaos run reports, in words and as JSON."""

from __future__ import annotations

import numpy as np

from edl.mesh.chaos import checks
from edl.mesh.chaos.report import ChaosReport, as_json, lines
from edl.mesh.chaos.settings import ChaosSettings
from edl.mesh.chaos.trace import Done, Trace
from edl.tests.mesh.chaos_traces import SECONDS, done, samples, student, trace


def report(*faults: Done, what: Trace | None = None) -> ChaosReport:
    seen = what or trace(faults=faults)
    settings = ChaosSettings(seed=77, seconds=SECONDS)
    plan = tuple(one.fault for one in faults)
    return ChaosReport(settings, plan, seen, checks.check_invariants(seen), SECONDS, False)


def test_the_report_says_the_seed_first_and_how_long_each_recovery_took() -> None:
    text = list(
        lines(
            report(
                done("kill-teacher", "t1", 5.0, 9.0),
                done("answer-nan", "t2", 20.0, 21.0, effects=3),
                done("break-teacher", "t2", 25.0, 25.0, effects=0),
                done("kill-teacher", "t1", 30.0, 30.0, skipped="it was not up"),
            )
        )
    )
    assert text[0] == "seed 77: edl chaos --minutes 1 --seed 77"
    assert text[1] == "ran 60 s: 2 faults, 1 without effect, 1 skipped"
    assert any("kill-teacher     t1         lasted 4.0 s, as before 0." in line for line in text)
    assert any(line.endswith("3 answers spoilt") for line in text)
    assert any(line.endswith("without effect: 0 connections cut") for line in text)
    assert not any("x break-teacher" in line for line in text), "it counts as no fault"
    assert any(line.endswith("skipped: it was not up") for line in text)
    assert sum(line.startswith("held") for line in text) == 8


def test_the_report_says_which_invariant_broke_and_where() -> None:
    found = report(what=trace(student(samples=np.delete(samples(), 40))))
    assert not found.held
    text = list(lines(found))
    at = next(at for at, line in enumerate(text) if line.startswith("BROKEN"))
    assert "each id once, in order" in text[at]
    assert "id 41 came at 4.1 s in the place of id 40" in text[at + 1]
    assert as_json(found)["held"] is False


def test_the_json_has_every_fault_and_every_invariant() -> None:
    told = as_json(report(done("kill-teacher", "t1", 5.0, 9.0)))
    assert next(iter(told)) == "seed"
    assert told["seed"] == 77
    assert told["faults"][0]["kind"] == "kill-teacher"
    assert told["faults"][0]["recovery_s"] < 1
    assert [one["held"] for one in told["invariants"]] == [True] * 8
