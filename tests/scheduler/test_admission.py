"""Who is probed, when, and who is admitted; in virtual time."""

from __future__ import annotations

import random

import pytest

from edl.scheduler.admission import AT_ONCE, LOST_S, Admission, Identity

A = Identity("a", 1, "h:1")


@pytest.fixture
def admission() -> Admission:
    return Admission(random.Random(7))


def test_a_teacher_is_probed_once_and_then_admitted(admission: Admission) -> None:
    assert not admission.appeared(A, 0.0)
    assert admission.due(0.0) == [A]
    assert admission.due(1.0) == []
    outcome = admission.answered(A, "ok", "", 1.0)
    assert outcome is not None
    assert outcome.admitted
    assert admission.appeared(A, 2.0)
    assert admission.due(99.0) == []


@pytest.mark.parametrize("other", [Identity("a", 2, "h:1"), Identity("a", 1, "h:2")])
def test_another_life_or_address_is_probed_again(admission: Admission, other: Identity) -> None:
    admission.appeared(A, 0.0)
    admission.due(0.0)
    admission.answered(A, "ok", "", 0.0)
    assert not admission.appeared(other, 1.0)
    assert admission.due(1.0) == [other]


def test_who_was_admitted_by_another_leader_is_not_probed() -> None:
    admission = Admission(random.Random(7), {"a": 1, "b": 1, "c": 0})
    assert admission.appeared(A, 0.0)
    assert not admission.appeared(Identity("b", 2, "h:2"), 0.0)
    assert not admission.appeared(Identity("c", 0, "h:3"), 0.0), "nobody has probed it"


def test_a_refused_one_is_tried_again_ever_more_rarely(admission: Admission) -> None:
    admission.appeared(A, 0.0)
    now, waits = 0.0, []
    for _ in range(12):
        began = now
        while not admission.due(now):
            now += 0.05
        waits.append(now - began)
        admission.answered(A, "retry", "no answer", now)
    assert all(wait <= 31.0 for wait in waits)
    assert sum(waits[-3:]) > sum(waits[1:4])


def test_a_reason_is_news_once(admission: Admission) -> None:
    admission.appeared(A, 0.0)
    news = []
    for why in ("no answer", "no answer", "wrong instance", "no answer"):
        outcome = admission.answered(A, "retry", why, 0.0)
        assert outcome is not None
        news.append(outcome.news)
    assert news == [True, False, True, True]
    assert admission.refused == {"a": "no answer"}


def test_one_that_never_will_is_not_asked_again(admission: Admission) -> None:
    admission.appeared(A, 0.0)
    admission.due(0.0)
    admission.answered(A, "never", "no such protocol", 0.0)
    assert not admission.appeared(A, 1.0)
    assert admission.due(9999.0) == []
    assert not admission.appeared(Identity("a", 2, "h:1"), 1.0)
    assert admission.due(1.0) == [Identity("a", 2, "h:1")]


def test_an_answer_that_comes_too_late_is_not_heeded(admission: Admission) -> None:
    admission.appeared(A, 0.0)
    admission.due(0.0)
    admission.gone("a")
    assert admission.answered(A, "ok", "", 1.0) is None
    assert not admission.appeared(A, 2.0)


def test_a_probe_that_is_never_answered_is_made_again(admission: Admission) -> None:
    admission.appeared(A, 0.0)
    assert admission.due(0.0) == [A]
    assert admission.due(LOST_S) == [A]


def test_a_crowd_is_probed_by_and_by(admission: Admission) -> None:
    crowd = [Identity(f"t{i}", 1, f"h:{i}") for i in range(3 * AT_ONCE)]
    for one in crowd:
        admission.appeared(one, 0.0)
    asked: list[Identity] = []
    while now := admission.due(0.0):
        assert len(now) <= AT_ONCE
        for one in now:
            admission.answered(one, "ok", "", 0.0)
        asked += now
    assert sorted(asked, key=lambda one: one.teacher_id) == sorted(
        crowd, key=lambda one: one.teacher_id
    )
    assert admission.waiting == 0
