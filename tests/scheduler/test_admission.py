"""Who is probed, when, and who is admitted; in virtual time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from edl.scheduler.admission import (
    AGAIN_AT_ONCE,
    AT_ONCE,
    LOST_S,
    Admission,
    Identity,
    who_proves,
)

A = Identity("a", 1, "h:1")


@pytest.fixture
def admission() -> Admission:
    return Admission(random.Random(7))


def test_who_has_to_prove_the_identity_of_a_teacher() -> None:
    assert who_proves("h:1", "", has_key=True) == "h:1", "it does so itself"
    assert who_proves("h:1", "h:2", has_key=True) == "h:2", "who vouches for it"
    for voucher in ("", "h:2"):
        assert who_proves("h:1", voucher, has_key=False) is None, "nobody can"


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


def test_who_is_refused_is_told_apart_from_who_waits(admission: Admission) -> None:
    admission.appeared(A, 0.0)
    assert not admission.is_refused("a")
    admission.answered(A, "never", "no such protocol", 0.0)
    assert admission.is_refused("a")
    admission.appeared(Identity("a", 2, "h:1"), 1.0)
    assert not admission.is_refused("a"), "another life"
    assert not admission.is_refused("b")


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


@pytest.mark.parametrize("seconds", [40, 300])
def test_a_crowd_that_nobody_can_reach_keeps_out_no_new_one(
    admission: Admission, seconds: int
) -> None:
    crowd = [Identity(f"t{i}", 1, f"h:{i}") for i in range(1000)]
    for one in crowd:
        admission.appeared(one, 0.0)
    asked: Counter[str] = Counter()
    ends: list[tuple[float, Identity]] = []

    def pass_by(now: float) -> list[Identity]:
        while ends and ends[0][0] <= now:
            admission.answered(ends.pop(0)[1], "retry", "no answer", now)
        due = admission.due(now)
        ends.extend((now + 2.0, one) for one in due)  # each holds its place for so long
        asked.update(one.teacher_id for one in due)
        assert len(ends) <= AT_ONCE
        return due

    for tick in range(10 * seconds):
        pass_by(tick / 10)
    assert min(asked[one.teacher_id] for one in crowd) >= 1
    assert max(asked.values()) - min(asked.values()) <= 2, "they take turns"
    assert len(ends) == AGAIN_AT_ONCE
    admission.appeared(A, seconds)
    assert pass_by(seconds)[0] == A
    outcome = admission.answered(A, "ok", "", seconds + 0.1)
    assert outcome is not None
    assert outcome.admitted


def test_a_new_one_is_not_behind_probes_that_were_lost(admission: Admission) -> None:
    for i in range(AT_ONCE + 1):
        admission.appeared(Identity(f"t{i}", 1, f"h:{i}"), 0.0)
    assert len(admission.due(0.0)) == AT_ONCE
    admission.appeared(A, 1.0)
    assert [one.teacher_id for one in admission.due(LOST_S)][:2] == [f"t{AT_ONCE}", "a"]
