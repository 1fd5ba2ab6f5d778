"""The first assignment rule by examples that can be read; all of it: tests/properties."""

from __future__ import annotations

import pytest

from edl.scheduler.assignment import (
    AssignmentEvent,
    AssignmentState,
    Change,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    TeacherUp,
    reduce,
)


class Service:
    """The reducer with its state."""

    def __init__(self, *events: AssignmentEvent) -> None:
        self.state = AssignmentState()
        self.see(*events)

    def see(self, *events: AssignmentEvent) -> dict[str, Change]:
        """The last change of each student that the events bring."""
        changes: dict[str, Change] = {}
        for event in events:
            self.state, new = reduce(self.state, event)
            changes |= {change.student_id: change for change in new}
        return changes

    def has(self, student: str) -> str:
        return "".join(self.state.students[student].teachers)


def up(*names: str) -> list[TeacherUp]:
    return [TeacherUp(name) for name in names]


def wants(student: str, want: int, holding: str = "") -> StudentReported:
    return StudentReported(student, want, tuple(holding))


def test_students_get_what_they_want_in_order_of_arrival() -> None:
    service = Service(*up(*"abcdef"), wants("s/0", 2), wants("s/1", 3), wants("s/2", 3))
    assert [service.has(f"s/{rank}") for rank in range(3)] == ["ab", "cde", "f"]


def test_the_first_leaves_at_least_one_for_each() -> None:
    service = Service(*up(*"abc"), wants("greedy", 9))
    assert service.has("greedy") == "abc"
    changes = service.see(wants("late", 2))
    assert changes["greedy"].teachers == ("a", "b")
    assert changes["greedy"].lost == ()
    assert changes["late"].teachers == ("c",)
    assert "1 of 2 wanted, as there are 3 teachers for 2 students" in changes["late"].reason


def test_a_new_teacher_goes_to_who_still_wants_one() -> None:
    service = Service(*up(*"ab"), wants("s/0", 1), wants("s/1", 2))
    changes = service.see(*up("c"))
    assert list(changes) == ["s/1"]
    assert changes["s/1"].teachers == ("b", "c")
    assert changes["s/1"].reason == "teacher c serves: 2 of 2 wanted"
    assert service.see(*up("d")) == {}


def test_what_is_not_wanted_any_more_is_given_back_the_last_first() -> None:
    service = Service(*up(*"abc"), wants("s/0", 3), wants("s/1", 2))
    assert (service.has("s/0"), service.has("s/1")) == ("ab", "c")
    service.see(wants("s/0", 1))
    assert (service.has("s/0"), service.has("s/1")) == ("a", "cb")


def test_who_wants_none_gets_none() -> None:
    service = Service(*up("a"), wants("s/0", 1), wants("s/1", 0))
    assert (service.has("s/0"), service.has("s/1")) == ("a", "")


def test_a_lost_teacher_is_named_and_replaced() -> None:
    service = Service(*up(*"abc"), wants("s/0", 2))
    changes = service.see(TeacherDown("a", lost=True))
    assert changes["s/0"] == Change("s/0", ("b", "c"), ("a",), "teacher a was lost: 2 of 2 wanted")


def test_a_teacher_that_left_in_order_is_revoked_not_lost() -> None:
    service = Service(*up("a"), wants("s/0", 1))
    assert service.see(TeacherDown("a", lost=False))["s/0"].lost == ()


def test_a_draining_teacher_is_revoked_and_its_loss_is_still_told() -> None:
    service = Service(*up(*"ab"), wants("s/0", 1))
    change = service.see(TeacherDraining("a"))["s/0"]
    assert (change.teachers, change.lost) == (("b",), ())
    change = service.see(TeacherDown("a", lost=True))["s/0"]
    assert (change.teachers, change.lost) == (("b",), ("a",))


def test_a_revoked_teachers_loss_is_told_to_who_may_have_requests_there() -> None:
    service = Service(*up(*"ab"), wants("s/0", 2), wants("s/1", 1))
    assert (service.has("s/0"), service.has("s/1")) == ("a", "b")
    changes = service.see(TeacherDown("b", lost=True))
    assert changes["s/0"].lost == ("b",)  # it was revoked when s/1 came
    assert changes["s/1"].lost == ("b",)


def test_another_incarnation_is_a_loss_and_a_new_teacher() -> None:
    service = Service(TeacherUp("a", incarnation=1), TeacherUp("b", incarnation=1), wants("s/0", 1))
    change = service.see(TeacherUp("a", incarnation=2))["s/0"]
    assert (change.teachers, change.lost) == (("a",), ("a",))
    assert service.see(TeacherUp("a", incarnation=2)) == {}


def test_a_drained_teacher_may_serve_again() -> None:
    service = Service(*up("a"), wants("s/0", 1), TeacherDraining("a"))
    assert service.has("s/0") == ""
    change = service.see(*up("a"))["s/0"]
    assert (change.teachers, change.lost) == (("a",), ())


def test_students_that_outnumber_teachers_share_them_evenly() -> None:
    service = Service(*up(*"ab"), *(wants(f"s/{rank}", 2) for rank in range(5)))
    served = sorted(service.has(f"s/{rank}") for rank in range(5))
    assert served in ([*"aaabb"], [*"aabbb"])


def test_those_of_a_lost_teacher_are_spread_over_the_others() -> None:
    service = Service(*up(*"abc"), *(wants(f"s/{rank}", 1) for rank in range(9)))
    changes = service.see(TeacherDown("c", lost=True))
    assert len(changes) == 3
    assert sorted(service.has(f"s/{rank}") for rank in range(9)) in (
        [*"aaaabbbbb"],
        [*"aaaaabbbb"],
    )


def test_a_lone_teacher_serves_everybody() -> None:
    service = Service(*up("a"), *(wants(f"s/{rank}", 3) for rank in range(4)))
    assert all(service.has(f"s/{rank}") == "a" for rank in range(4))


def test_a_student_that_goes_frees_its_teachers() -> None:
    service = Service(*up(*"ab"), wants("s/0", 1), wants("s/1", 2))
    assert service.see(StudentGone("s/0"))["s/1"].teachers == ("b", "a")


def test_a_manager_that_starts_anew_strips_nobody() -> None:
    service = Service(*up(*"abcd"), wants("s/1", 2, holding="cd"), wants("s/0", 2, holding="ba"))
    assert (service.has("s/1"), service.has("s/0")) == ("cd", "ba")


def test_what_a_known_student_holds_is_no_news() -> None:
    service = Service(*up(*"abc"), wants("s/0", 1))
    assert service.see(wants("s/0", 1, holding="bc")) == {}


def test_a_new_student_is_told_even_of_nothing() -> None:
    change = Service().see(wants("s/0", 2))["s/0"]
    assert change.teachers == ()
    assert change.reason == (
        "student s/0 wants 2: 0 of 2 wanted, as there are 0 teachers for 1 students"
    )


@pytest.mark.parametrize(
    "event",
    [
        TeacherUp("a"),
        TeacherDown("x", lost=True),
        TeacherDraining("x"),
        StudentGone("x"),
        StudentReported("s/0", 1),
    ],
)
def test_no_news_leave_the_state_itself(event: AssignmentEvent) -> None:
    state = Service(*up("a"), wants("s/0", 1)).state
    after, changes = reduce(state, event)
    assert after is state
    assert changes == ()


def test_nobody_wants_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="s/0 cannot want -1"):
        Service(wants("s/0", -1))
