"""The assignment rule by examples that can be read; its laws: tests/properties."""

from __future__ import annotations

import pytest

from edl.scheduler.assignment import (
    AssignmentEvent,
    Change,
    RecoveryBegan,
    RecoveryEnded,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    TeacherUp,
    Ticked,
    reduce,
)

from .assigned import Service, up, wants


def test_nobody_is_below_another_by_more_than_one() -> None:
    """Eight students that want five each with 39 teachers: one static share left teachers idle."""
    students = [wants(f"job{index}/0", 5) for index in range(8)]
    service = Service(*(TeacherUp(f"t{index}") for index in range(39)), *students)
    assert service.idle == set()
    assert sorted(service.counts) == [4, 5, 5, 5, 5, 5, 5, 5]


def test_what_one_does_not_want_another_has() -> None:
    """Wants of 8 and 1 with 8 teachers: halves would leave three teachers idle."""
    service = Service(*up("abcdefgh"), wants("a/0", 8), wants("b/0", 1))
    assert service.counts == [7, 1]


def test_a_new_student_has_its_share_from_who_would_miss_it_least() -> None:
    service = Service(*up("abcdef"), wants("a/0", 4), wants("b/0", 2))
    changes = service.see(wants("c/0", 2))
    assert service.counts == [2, 2, 2]
    assert set(changes) == {"a/0", "c/0"}


def test_the_first_leaves_at_least_one_for_each() -> None:
    service = Service(*up("abc"), wants("greedy/0", 9))
    assert service.has("greedy/0") == "abc"
    changes = service.see(wants("late/0", 2))
    assert changes["greedy/0"].lost == ()
    assert service.counts == [2, 1]
    assert changes["greedy/0"].reason == (
        "teacher c given to late/0, which had none: 2 of 9 wanted, as 3 teachers serve 2 students"
    )
    assert changes["late/0"].reason.endswith("1 of 2 wanted, as 3 teachers serve 2 students")


def test_a_new_teacher_goes_to_who_still_wants_one() -> None:
    service = Service(*up("ab"), wants("a/0", 1), wants("b/0", 2))
    changes = service.see(*up("c"))
    assert list(changes) == ["b/0"]
    assert changes["b/0"].teachers == ("b", "c")
    assert changes["b/0"].reason == "teacher c serves: 2 of 2 wanted"
    assert service.see(*up("d")) == {}


def test_what_is_not_wanted_any_more_is_given_back_the_latest_first() -> None:
    service = Service(*up("abc"), wants("a/0", 3), wants("b/0", 2))
    assert service.counts == [2, 1]
    first = service.state.students["a/0"].teachers[0]
    service.see(wants("a/0", 1))
    service.wait(30)
    assert service.has("a/0") == first
    assert service.counts == [1, 2]


def test_who_wants_none_gets_none_and_gives_all_back_at_once() -> None:
    service = Service(*up("ab"), wants("a/0", 2), wants("b/0", 0))
    assert service.counts == [2, 0]
    service.see(wants("a/0", 0))
    assert service.counts == [0, 0]


def test_a_lost_teacher_is_named_and_replaced() -> None:
    service = Service(*up("abc"), wants("a/0", 2))
    change = service.see(TeacherDown("a", lost=True))["a/0"]
    assert change == Change(
        "a/0",
        ("b", "c"),
        ("a",),
        "",
        "",
        0,
        "teacher a was lost; teacher c was free: 2 of 2 wanted",
    )


def test_a_loss_that_cannot_be_replaced_is_said() -> None:
    service = Service(*up("ab"), wants("a/0", 2))
    reason = service.see(TeacherDown("a", lost=True))["a/0"].reason
    assert reason == "teacher a was lost: 1 of 2 wanted, as 1 teacher serves 1 student"
    reason = service.see(TeacherDown("b", lost=True))["a/0"].reason
    assert reason == "teacher b was lost: 0 of 2 wanted, as no teacher serves"


def test_a_teacher_that_left_in_order_is_revoked_not_lost() -> None:
    service = Service(*up("a"), wants("a/0", 1))
    assert service.see(TeacherDown("a", lost=False))["a/0"].lost == ()


def test_a_draining_teacher_is_revoked_and_its_loss_is_still_told() -> None:
    service = Service(*up("ab"), wants("a/0", 1))
    change = service.see(TeacherDraining("a"))["a/0"]
    assert (change.teachers, change.lost) == (("b",), ())
    assert change.reason.startswith("teacher a drains")
    change = service.see(TeacherDown("a", lost=True))["a/0"]
    assert (change.teachers, change.lost) == (("b",), ("a",))


def test_a_revoked_teachers_loss_is_told_to_who_may_have_requests_there() -> None:
    service = Service(*up("ab"), wants("a/0", 2))
    service.see(wants("b/0", 1))
    assert (service.has("a/0"), service.has("b/0")) == ("a", "b")
    changes = service.see(TeacherDown("b", lost=True))
    assert changes["a/0"].lost == ("b",)  # it was revoked when b/0 came
    assert changes["b/0"].lost == ("b",)


def test_another_incarnation_is_a_loss_and_a_new_teacher() -> None:
    service = Service(TeacherUp("a", 1), TeacherUp("b", 1), wants("a/0", 1))
    change = service.see(TeacherUp("a", 2))["a/0"]
    assert (change.teachers, change.lost) == (("a",), ("a",))
    assert change.reason == "teacher a was started anew: 1 of 1 wanted"
    assert service.see(TeacherUp("a", 2)) == {}


def test_one_that_died_and_came_back_within_a_batch_was_lost() -> None:
    service = Service(TeacherUp("a", 1), wants("a/0", 1))
    change = service.see(TeacherDown("a", lost=True), TeacherUp("a", 2))["a/0"]
    assert (change.teachers, change.lost) == (("a",), ("a",))


def test_a_drained_teacher_may_serve_again() -> None:
    service = Service(*up("a"), wants("a/0", 1), TeacherDraining("a"))
    assert service.has("a/0") == ""
    change = service.see(*up("a"))["a/0"]
    assert (change.teachers, change.lost) == (("a",), ())


def test_a_student_that_goes_frees_its_teachers() -> None:
    service = Service(*up("ab"), wants("a/0", 1), wants("b/0", 2))
    assert set(service.see(StudentGone("a/0"))["b/0"].teachers) == {"a", "b"}


def test_of_equal_teachers_the_one_on_the_students_host_is_taken() -> None:
    service = Service(*up("ab", host="left"), *up("cd", host="right"))
    service.see(StudentReported("a/0", 1, host="right"))
    assert service.has("a/0") == "c"
    service.see(StudentReported("b/0", 2, host="right"))
    assert service.has("b/0") == "ad"


def test_a_host_is_no_reason_to_move() -> None:
    service = Service(*up("a", host="left"), StudentReported("a/0", 1, host="right"))
    assert service.see(*up("b", host="right")) == {}


# ------------------------------------------------------------------------------------------- jobs


def test_the_last_teachers_lift_a_whole_job() -> None:
    """A job is as fast as its slowest rank: with one to spare, lift the job that has one rank."""
    ranks = [wants(f"big/{rank}", 3) for rank in range(3)]
    service = Service(*up("abcde"), *ranks, wants("small/0", 3))
    assert service.counts == [1, 1, 1, 2]


def test_a_job_is_lifted_by_ranks_when_there_is_enough_for_all_of_them() -> None:
    ranks = [wants(f"big/{rank}", 3) for rank in range(3)]
    service = Service(*up("abcdefg"), *ranks, wants("small/0", 3))
    assert sorted(service.counts) == [1, 2, 2, 2]
    assert service.counts[3] == 2


def test_two_small_jobs_go_before_a_large_one_that_holds_their_teachers() -> None:
    service = Service(*up("abcdef"), *(wants(f"big/{rank}", 2) for rank in range(3)))
    assert service.counts == [2, 2, 2]
    service.see(wants("x/0", 2), wants("y/0", 2))
    assert service.counts == [1, 1, 1, 2, 1]
    service.see(*up("g"))
    assert service.counts == [1, 1, 1, 2, 2]


# ------------------------------------------------------------------------- priority and `min`


def test_priority_comes_before_more_for_others_but_not_before_their_first() -> None:
    service = Service(*up("abcdef"), wants("low/0", 6))
    service.see(wants("high/0", 9, priority=1))
    assert service.counts == [1, 5]


def test_what_is_guaranteed_comes_before_priority() -> None:
    service = Service(*up("abcdef"), wants("low/0", 6, min=3))
    changes = service.see(wants("high/0", 9, priority=1))
    assert service.counts == [3, 3]
    assert "which had none" in changes["low/0"].reason


def test_guarantees_that_exceed_the_supply_are_met_by_priority_and_then_evenly() -> None:
    """Five teachers, mins of 3, 3 and 2: everybody has one, then the first priority its min."""
    service = Service(
        *up("abcde"),
        wants("low/0", 3, min=3),
        wants("other/0", 2, min=2),
        wants("high/0", 3, min=3, priority=1),
    )
    assert service.counts == [1, 1, 3]
    service.see(*up("f"))
    assert sorted(service.counts) == [1, 2, 3]
    service.see(*up("g"))
    assert service.counts == [2, 2, 3]


def test_nobody_is_guaranteed_more_than_it_wants() -> None:
    service = Service(*up("abcd"), wants("a/0", 1, min=3), wants("b/0", 4))
    assert service.counts == [1, 3]


# -------------------------------------------------------------------------------------- recovery


def test_a_manager_that_starts_anew_strips_nobody() -> None:
    service = Service(
        RecoveryBegan(), *up("abcd"), wants("b/0", 2, holding="cd"), wants("a/0", 2, holding="ba")
    )
    assert (service.has("b/0"), service.has("a/0")) == ("cd", "ab")
    assert service.see(RecoveryEnded()) == {}


def test_sets_only_grow_while_teachers_register_anew() -> None:
    service = Service(RecoveryBegan(), *up("ab"), wants("a/0", 1, holding="ab"))
    assert service.has("a/0") == "ab"
    service.see(wants("b/0", 1))
    assert service.has("a/0") == "ab"
    assert service.count("b/0") == 1  # it shares: nobody goes without
    service.see(*up("c"), wants("c/0", 1))
    assert service.has("c/0") == "c"
    service.see(RecoveryEnded())
    assert (service.counts, service.idle) == ([1, 1, 1], set())


def test_the_dead_are_out_at_once_even_then() -> None:
    service = Service(RecoveryBegan(), *up("ab"), wants("a/0", 2, holding="ab"))
    change = service.see(TeacherDown("a", lost=True))["a/0"]
    assert (change.teachers, change.lost) == (("b",), ("a",))
    change = service.see(TeacherDown("b", lost=False))["a/0"]
    assert (change.teachers, change.lost) == ((), ())


def test_what_a_known_student_holds_is_no_news() -> None:
    service = Service(*up("abc"), wants("a/0", 1))
    assert service.see(wants("a/0", 1, holding="bc")) == {}


def test_what_another_has_is_not_taken_by_saying_so() -> None:
    service = Service(*up("abc"), wants("a/0", 2))
    assert service.has("a/0") == "ab"
    service.see(wants("b/0", 2, holding="ab"))
    assert (service.has("a/0"), service.has("b/0")) == ("ab", "c")


def test_a_student_that_was_started_anew_is_told_what_it_has() -> None:
    service = Service(*up("ab"), wants("a/0", 1))
    change = service.see(StudentGone("a/0"), wants("a/0", 1, holding="a"))["a/0"]
    assert change.teachers == ("a",)
    assert change.reason == "student a/0 wants 1: 1 of 1 wanted"


# ------------------------------------------------------------------------------------------ words


def test_a_new_student_is_told_even_of_nothing() -> None:
    change = Service().see(wants("a/0", 2))["a/0"]
    assert change.teachers == ()
    assert change.reason == "student a/0 wants 2: 0 of 2 wanted, as no teacher serves"


@pytest.mark.parametrize(
    "event",
    [
        TeacherUp("a", 1),
        TeacherDown("x", lost=True),
        TeacherDraining("x"),
        StudentGone("x"),
        StudentReported("a/0", 1),
        RecoveryEnded(),
        Ticked(),
    ],
)
def test_no_news_leave_the_state_itself(event: AssignmentEvent) -> None:
    state = Service(*up("a"), wants("a/0", 1)).state
    after, changes = reduce(state, [event], 1.0)
    assert after is state
    assert changes == ()


def test_nobody_wants_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="a/0 cannot want -1"):
        Service(wants("a/0", -1))
