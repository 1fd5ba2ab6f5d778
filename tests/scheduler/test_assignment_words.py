"""Every change names its true cause: what an operator reads in the log."""

from __future__ import annotations

import pytest

from edl.scheduler.assignment import (
    ContentPlanned,
    RecoveryBegan,
    RecoveryEnded,
    StudentReported,
    TeacherUp,
)

from .assigned import Service, up, wants


def test_a_set_that_shrinks_at_the_end_of_a_recovery_says_so() -> None:
    service = Service(RecoveryBegan(), *up("abc"))
    service.see(wants("a/0", 2, "ab"), wants("b/0", 1, "b"))
    changes = service.see(RecoveryEnded())
    assert "teacher b, shared during the recovery, left to b/0" in changes["a/0"].reason
    assert "teacher c was free" in changes["a/0"].reason
    assert set(changes) == {"a/0"}


@pytest.mark.parametrize(("speed", "pace"), [(400.0, "faster"), (20.0, "slower")])
def test_a_teacher_whose_speed_is_another_one_is_named_with_it(speed: float, pace: str) -> None:
    service = Service(*up("abcdefg", 100), wants("a/0", 3), wants("b/0", 3))
    (change,) = service.see(TeacherUp("a", 1, speed)).values()
    assert change.reason.startswith(f"teacher a is {pace} than was known; ")


def test_a_kept_teacher_that_is_slower_is_the_cause_of_another_one() -> None:
    service = Service(*up("ab", 400), *up("cdef", 100), wants("a/0", 9), wants("b/0", 9))
    change = service.see(TeacherUp("a", 1, 100.0))["a/0"]
    assert "a" in change.teachers
    assert change.reason.startswith("teacher a is slower than was known; teacher f taken over")


def test_a_teacher_is_told_from_one_whose_name_begins_alike() -> None:
    service = Service(RecoveryBegan(), TeacherUp("t0"), TeacherUp("t10"), TeacherUp("t1"))
    service.see(StudentReported("a/0", 2, ("t0", "t10")), StudentReported("b/0", 1, ("t10",)))
    change = service.see(RecoveryEnded())["a/0"]
    assert change.teachers == ("t0", "t1")
    assert "teacher t10, shared" in change.reason
    assert "teacher t1 was free" in change.reason


def test_a_teacher_that_serves_another_content_is_named_with_it() -> None:
    service = Service(ContentPlanned("x"), *up("ab", content="x"), wants("a/0", 2))
    change = service.see(TeacherUp("a", 1, content_id="y"))["a/0"]
    assert change.reason.startswith("teacher a serves another content: 1 of 2")


def test_what_is_new_about_a_claim_is_named() -> None:
    service = Service(*up("abcd"), wants("a/0", 4), wants("b/0", 4))
    assert (
        "student a/0 has priority 1, not 0"
        in service.see(wants("a/0", 4, priority=1))["a/0"].reason
    )
    change = service.see(wants("b/0", 4, min=2))["b/0"]
    assert "student b/0 is to have at least 2" in change.reason
