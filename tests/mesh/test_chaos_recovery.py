"""How long after a fault the mesh was as before, over traces that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.mesh.chaos.recovery import recovery_s
from edl.tests.mesh.chaos_traces import done, figures, samples, student, trace, without


def test_a_teacher_has_recovered_when_those_it_is_assigned_to_send_to_it_again() -> None:
    told = tuple(replace(one, teachers=("t1",)) if one.at_s < 12.0 else one for one in figures())
    what = trace(student(figures=told))
    took_s = recovery_s(what, done("kill-teacher", "t2", 5.0, 9.0))
    assert took_s == pytest.approx(3.0, abs=0.5)
    assert recovery_s(what, done("kill-teacher", "t1", 5.0, 9.0)) == pytest.approx(0.25, abs=0.25)
    assert recovery_s(what, done("kill-teacher", "t1", 5.0, None)) is None


def test_nothing_has_recovered_before_every_student_was_given_something() -> None:
    held_up = student(samples=without(samples(), 9.0, 15.0))
    took_s = recovery_s(trace(student(), held_up), done("break-teacher", "t1", 9.0, 9.0))
    assert took_s == pytest.approx(6.0, abs=0.5)


def test_an_engine_has_recovered_when_another_one_sends() -> None:
    what = trace(student(figures=figures(engines=(22.0,))))
    took_s = recovery_s(what, done("kill-engine", "s1", 20.0, 20.0))
    assert took_s == pytest.approx(2.0, abs=0.5)


def test_redis_has_recovered_when_all_leases_are_back() -> None:
    what = trace()
    looks = tuple(
        replace(one, teachers=frozenset({"t1"})) if one.at_s < 14.0 else one
        for one in what.snapshots
    )
    emptied = replace(what, snapshots=looks)
    took_s = recovery_s(emptied, done("kill-redis", "redis", 9.0, 10.0))
    assert took_s == pytest.approx(4.0, abs=0.5)


def test_a_guest_is_over_when_it_is_gone() -> None:
    assert recovery_s(trace(), done("add-teacher", "g1", 5.0, 9.0)) is not None
    assert recovery_s(trace(), done("add-teacher", "t1", 5.0, 9.0)) is None
