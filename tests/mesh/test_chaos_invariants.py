"""Invariants, liveness, memory growth and report of a chaos run, on synthetic traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.mesh.chaos import invariants
from edl.mesh.chaos.fault_plan import ChaosSettings, Fault
from edl.mesh.chaos.liveness import OWED_AFTER_S, longest_pause, recovery_s
from edl.mesh.chaos.report import ChaosReport, as_json, report_lines
from edl.mesh.chaos.run_trace import (
    CALL_RECORD,
    CALL_TIMEOUT_S,
    SAMPLE_RECORD,
    ElasticTrainingResult,
    FaultRecord,
    MembershipSnapshot,
    RunTrace,
    StudentStats,
    StudentTrace,
)
from edl.mesh.chaos.synthetic_samples import expected_digest_of_call, expected_digests
from edl.proto.arena import Array

SECONDS = 60.0
TEACHERS = ("t1", "t2")
MIB = 1 << 20


def samples(count: int = 600) -> Array:
    rows = np.empty(count, SAMPLE_RECORD)
    rows["id"] = np.arange(count)
    rows["at_s"] = rows["id"] * SECONDS / count
    rows["digest"] = expected_digests(rows["id"])
    return rows


def stats(
    teachers: Sequence[str] = TEACHERS,
    *,
    grows: int = 0,
    engines: Sequence[float] = (),
    seconds: float = SECONDS,
) -> tuple[StudentStats, ...]:
    """Five a second; one engine dies at each time of `engines`, and the next begins small."""
    told = []
    for at_s in map(float, np.arange(0.0, seconds, 0.2)):
        deaths = [death for death in engines if at_s >= death]
        volume = int(MIB * (1 + at_s % 3))
        one = StudentStats(at_s, tuple(teachers), 100 + len(deaths), volume)
        engine = 60 * MIB + int(grows * (at_s - max(deaths, default=0.0)))
        told.append(replace(one, trainer_bytes=50 * MIB + volume, engine_bytes=engine))
    return tuple(told)


def student(**changes: Any) -> StudentTrace:
    return replace(StudentTrace(samples(), stats(), 0.0, SECONDS), **changes)


def trace(*students: StudentTrace, faults: Sequence[FaultRecord] = (), **changes: Any) -> RunTrace:
    named = {f"s{number + 1}": seen for number, seen in enumerate(students or (student(),))}
    assigned = {name: frozenset(TEACHERS) for name in named}
    looks = tuple(
        MembershipSnapshot(float(at_s), frozenset(TEACHERS), frozenset(named), assigned)
        for at_s in np.arange(0.0, SECONDS, 0.25)
    )
    return replace(RunTrace(TEACHERS, named, tuple(faults), looks), **changes)


def injected(
    kind: str, target: str, at_s: float, healed_s: float | None, **changes: Any
) -> FaultRecord:
    return replace(FaultRecord(Fault(1, at_s, kind, target, 1.0), at_s, healed_s), **changes)


def without(rows: Array, begin_s: float, end_s: float) -> Array:
    """The same samples, those that came in between late."""
    late = rows.copy()
    held = (late["at_s"] >= begin_s) & (late["at_s"] < end_s)
    late["at_s"][held] = end_s
    return late


def broken(what: RunTrace) -> list[str]:
    return [finding.name for finding in invariants.check_invariants(what) if not finding.held]


def test_a_run_in_order_breaks_nothing() -> None:
    assert broken(trace()) == []
    assert broken(trace(student(samples=samples()[:0])))[0] == "each id once, in order"
    assert broken(trace(student(samples=samples()[:500]))) == ["no pause longer than 3 s"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda rows: np.delete(rows, 40), "id 41 arrived at 4.1 s instead of id 40"),
        (lambda rows: np.insert(rows, 40, rows[39]), "id 39 arrived at 3.9 s instead of id 40"),
        (lambda rows: rows[np.r_[0:40, 41, 40, 42:600]], "id 41 arrived at 4.1 s"),
    ],
    ids=["lost", "twice", "swapped"],
)
def test_an_id_out_of_its_place_is_named(change: Any, place: str) -> None:
    finding = invariants.ids_in_order(trace(student(samples=change(samples()))))
    assert not finding.held
    assert place in finding.broken[0]


def found_out(at_s: float) -> tuple[StudentStats, ...]:
    """Of a student that says for 20 s from then on that t1 lies."""
    return tuple(
        replace(one, ejected=(("t1", "lied"),) if at_s <= one.at_s < at_s + 20 else ())
        for one in stats()
    )


def test_a_wrong_label_is_named_unless_it_may_be_a_lie_that_was_not_found_out_yet() -> None:
    rows = samples()
    rows["digest"][[205, 215, 260, 280]] ^= np.uint64(1)  # at 20.5, 21.5, 26 and 28 s
    lie = [injected("answer-other", "t1", 20.0, 22.0)]
    for ejected_s, faults, named in (
        (21.4, [], "4 samples, the first: id 205 at 20.5 s, id 215 at 21.5 s, "),
        (21.4, lie, "2 samples, the first: id 260 at 26.0 s, "),
        (20.6, lie, "3 samples, the first: id 215 at 21.5 s, "),
        (np.inf, lie, "1 samples, the first: id 280 at 28.0 s"),  # it has to be over some time
    ):
        liar = student(samples=rows, stats=found_out(ejected_s))
        (broken,) = invariants.labels_correct(trace(student(), liar, faults=faults)).broken
        assert broken.startswith(f"s2: {named}")


def calls(count: int = 1000) -> Array:
    rows = np.empty(count, CALL_RECORD)
    rows["id"], rows["rows"], rows["took_s"] = 3 * np.arange(count), 3, 0.05
    rows["at_s"] = np.arange(count) * SECONDS / count
    rows["digest"] = [expected_digest_of_call(3 * number, 3) for number in range(count)]
    return rows


@pytest.mark.parametrize(
    ("field", "at", "value", "named"),
    [
        ("digest", [20], 0, ""),  # one of a thousand
        ("digest", [20, 30], 0, "2 calls failed, the first at 1.2 s"),
        ("took_s", [50], CALL_TIMEOUT_S, ""),
        ("took_s", [50], CALL_TIMEOUT_S + 5.0, "1 calls took too long, 15.0 s at 3.0 s"),
    ],
)
def test_a_call_without_its_labels_is_named(
    field: str, at: list[int], value: float, named: str
) -> None:
    rows = calls()
    rows[field][at] = value
    finding = invariants.calls_answered(trace(student(calls=rows)))
    assert finding.broken == ((f"s1: {named}",) if named else ())


def test_a_call_with_wrong_labels_is_named() -> None:
    rows = calls()
    rows["digest"][[20, 400]] = 7  # the second one while a teacher lies undetected
    lie = [injected("answer-other", "t1", 20.0, 22.0)]
    finding = invariants.labels_correct(trace(student(calls=rows), faults=lie))
    assert finding.broken == ("s1: 1 calls got wrong labels, first at 1.2 s",)


@pytest.mark.parametrize("kind", ["answer-other", "answer-nan"])
def test_a_convicted_teacher_has_lied(kind: str) -> None:
    def convicted(at_s: float) -> invariants.InvariantResult:
        lie = injected(kind, "t1", 20.0, 22.0)
        return invariants.honest_teachers_kept(trace(student(stats=found_out(at_s)), faults=[lie]))

    assert convicted(21.0).held is (kind == "answer-other")
    assert convicted(19.0).broken == ("s1: t1 at 19.0 s",)


def test_labels_of_a_misconfigured_teacher_are_named() -> None:
    what = trace(student(stats=stats(), samples=samples()), misconfigured=TEACHERS)
    assert invariants.misconfigured_teachers_unused(what).held
    used = tuple(replace(one, labelling=("t2",)) for one in stats())
    what = replace(what, students={"s1": student(stats=used)})
    assert invariants.misconfigured_teachers_unused(what).broken == ("s1 used labels of t2",)
    what = trace(misconfigured=("absent",))
    assert invariants.misconfigured_teachers_unused(what).broken == ("absent never had a lease",)


def test_a_teacher_that_refuses_is_ejected_for_that() -> None:
    def finding(cause: str, seconds: float) -> invariants.InvariantResult:
        told = [replace(one, ejected=(("t1", cause),)) for one in stats(seconds=seconds)]
        return invariants.misconfigured_teachers_unused(
            trace(student(stats=tuple(told)), refusing=("t1",), misconfigured=("t1",))
        )

    assert finding("refused", SECONDS).held
    assert "1 of 1" in finding("refused", SECONDS).checked
    assert finding("failed", SECONDS).broken == ("s1 had t1 for over 30 s and did not eject it",)
    assert finding("failed", invariants.MAX_REFUSING_S / 2).held


def test_a_pause_with_a_healthy_teacher_is_named() -> None:
    what = trace(student(samples=without(samples(), 20.0, 24.0)))
    assert broken(what) == ["no pause longer than 3 s"]
    pause = longest_pause(what, "s1")
    assert pause.seconds == pytest.approx(4.0, abs=0.2)
    assert pause.began_s == pytest.approx(20.0, abs=0.2)
    assert pause.next_id == 200
    assert pause.healthy == TEACHERS


def test_a_pause_is_excused_while_all_its_teachers_are_harmed_or_the_machine_stalls() -> None:
    still = student(samples=without(samples(), 20.0, 26.0), stats=stats(["t1"]))
    silent = injected("silence-teacher", "t1", 19.5, 25.0)
    other = injected("kill-teacher", "t2", 15.0, 16.0)
    assert broken(trace(still, faults=[silent, other])) == []
    for not_excused in (
        replace(silent, healed_s=22.5),  # one step longer than allowed after it was healed
        replace(silent, skipped="it was not up"),
    ):
        assert broken(trace(still, faults=[not_excused, other])) == ["no pause longer than 3 s"]
    assert broken(trace(still, stalls=((20.5, 25.5),))) == []


def test_a_reader_that_sends_to_nobody_is_owed_a_teacher_in_the_end() -> None:
    """Whatever it believes of them: all were healthy for long."""
    still = student(samples=without(samples(), 30.0, 30.0 + 2 * OWED_AFTER_S), stats=stats([]))
    finding = invariants.pauses_bounded(trace(still))
    assert finding.broken[0].endswith("with enough healthy teachers, none of which it sent to")
    lately = injected("kill-redis", "redis", 29.0, 30.0 + 2 * OWED_AFTER_S)
    assert longest_pause(trace(still, faults=[lately]), "s1").seconds < 3


def test_a_check_without_healthy_teachers_says_so() -> None:
    faults = [injected("silence-teacher", name, 5.0, None) for name in TEACHERS]
    finding = invariants.pauses_bounded(trace(faults=faults))
    assert "had a healthy teacher for only 8% of the time" in finding.broken[0]


@pytest.mark.parametrize("engines", [(), (20.0, 100.0)])
def test_memory_that_grows_is_named(engines: Sequence[float]) -> None:
    growing = stats(grows=300 << 10, engines=engines, seconds=240.0)
    finding = invariants.memory_bounded(trace(student(stats=growing)))
    assert finding.broken == ("s1: trainer and engine grow by 300 KiB/s",)
    assert invariants.memory_bounded(
        trace(student(stats=stats(engines=engines, seconds=240.0)))
    ).held


def test_a_trainer_that_grows_is_found_across_the_lives_of_its_engines() -> None:
    told = stats(engines=range(5, 60, 5))
    grown = [
        replace(one, trainer_bytes=one.trainer_bytes + int(one.at_s * (200 << 10))) for one in told
    ]
    finding = invariants.memory_bounded(trace(student(stats=tuple(grown))))
    assert any("trainer grow by" in text for text in finding.broken)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ({"teachers": frozenset({"t1"})}, "t2 has no lease"),
        ({"students": frozenset()}, "s1 has no lease"),
        ({"assigned": {}}, "s1 has no teacher assigned"),
    ],
)
def test_what_is_missing_at_the_end_is_named(missing: dict[str, Any], words: str) -> None:
    last = replace(trace().snapshots[-1], **missing)
    assert invariants.mesh_recovered(trace(snapshots=(last,))).broken == (words,)
    sends_to_none = trace(student(stats=stats([])))
    assert invariants.mesh_recovered(sends_to_none).broken == ("s1 sends to no teacher: ",)


def test_what_was_not_over_made_trouble_or_was_left_is_named() -> None:
    faults = [
        injected("kill-teacher", "t1", 5.0, None),
        injected("drain-teacher", "t2", 5.0, 7.0, trouble="it drained with exit code 1, not 0"),
    ]
    assert invariants.mesh_recovered(trace(faults=faults)).broken == (
        "kill-teacher of t1 at 5.0 s is not healed",
        "drain-teacher of t2 at 5.0 s: it drained with exit code 1, not 0",
    )
    assert all(
        one.held for one in invariants.check_invariants(trace(faults=faults), interrupted=True)
    )
    what = trace(student(trouble="exited by itself: PoisonBatch"), leftovers=("process 7: x",))
    assert broken(what) == ["students exit cleanly", "nothing is left behind"]


def test_a_node_with_another_seed_has_to_be_refused_alone() -> None:
    for trouble, code, said, words in (
        ("", 2, "seed is 7 here", ()),
        ("exited by itself: x", 2, "seed is 7 here", ("the training exited by itself: x",)),
        ("", 0, "seed is 7 here", ("the second node exited with 0: seed is 7 here",)),
        ("", 2, "no room", ("the second node exited with 2: no room",)),
    ):
        seen = ElasticTrainingResult(9, trouble, code, said)
        assert invariants.wrong_seed_refused(trace(training=seen)).broken == words
    assert invariants.wrong_seed_refused(trace()).held


def test_a_teacher_has_recovered_when_those_it_is_assigned_to_send_to_it_again() -> None:
    told = tuple(replace(one, teachers=("t1",)) if one.at_s < 12.0 else one for one in stats())
    what = trace(student(stats=told))
    assert recovery_s(what, injected("kill-teacher", "t2", 5.0, 9.0)) == pytest.approx(3.0, abs=0.5)
    assert recovery_s(what, injected("kill-teacher", "t1", 5.0, 9.0)) == pytest.approx(
        0.25, abs=0.25
    )
    assert recovery_s(what, injected("kill-teacher", "t1", 5.0, None)) is None


def test_recovery_of_students_engines_redis_and_guests() -> None:
    held_up = trace(student(), student(samples=without(samples(), 9.0, 15.0)))
    another = trace(student(stats=stats(engines=(22.0,))))
    early = [replace(one, teachers=frozenset({"t1"})) for one in trace().snapshots if one.at_s < 14]
    emptied = trace(snapshots=(*early, *trace().snapshots[len(early) :]))
    for seen, fault, expected_s in (
        (held_up, injected("break-teacher", "t1", 9.0, 9.0), 6.0),
        (another, injected("kill-engine", "s1", 20.0, 20.0), 2.0),
        (emptied, injected("kill-redis", "redis", 9.0, 10.0), 4.0),
    ):
        assert recovery_s(seen, fault) == pytest.approx(expected_s, abs=0.5)
    assert recovery_s(trace(), injected("add-teacher", "g1", 5.0, 9.0)) is not None, (
        "the guest is gone"
    )
    assert recovery_s(trace(), injected("add-teacher", "t1", 5.0, 9.0)) is None


def report(seen: RunTrace) -> tuple[list[str], dict[str, Any]]:
    plan, findings = tuple(one.fault for one in seen.faults), invariants.check_invariants(seen)
    settings = ChaosSettings(seed=77, seconds=SECONDS)
    made = ChaosReport(settings, plan, seen, findings, SECONDS, False)
    return list(report_lines(made)), as_json(made)


def test_the_report_shows_the_seed_first_each_fault_and_what_broke() -> None:
    faults = (
        injected("kill-teacher", "t1", 5.0, 9.0),
        injected("answer-nan", "t2", 20.0, 21.0, effects=3),
        injected("break-teacher", "t2", 25.0, 25.0, effects=0),
        injected("kill-teacher", "t1", 30.0, 30.0, skipped="it was not up"),
    )
    text, told = report(trace(faults=faults))
    assert text[0] == "seed 77: edl chaos --minutes 1 --seed 77"
    assert "2 faults, 1 without effect, 1 skipped" in text[1]
    for end in (
        "3 responses corrupted",
        "without effect: 0 connections closed",
        "skipped: it was not up",
    ):
        assert any(line.endswith(end) for line in text)
    assert (next(iter(told)), told["seed"], told["held"]) == ("seed", 77, True)
    assert [one["kind"] for one in told["faults"]] == [one.fault.kind for one in faults]
    assert told["faults"][0]["recovery_s"] < 1
    assert [one["held"] for one in told["invariants"]] == [True] * 11
    text, told = report(trace(student(samples=np.delete(samples(), 40))))
    at = next(at for at, line in enumerate(text) if line.startswith("BROKEN"))
    assert "each id once, in order" in text[at]
    assert "id 41 arrived at 4.1 s instead of id 40" in text[at + 1]
    assert told["held"] is False
