"""Teachers of several speeds, students that need a part of one, and more students than teachers."""

from __future__ import annotations

from collections import Counter

import pytest

from edl.scheduler.assignment import StudentGone, TeacherDown, TeacherUp
from edl.scheduler.assignment.events import StudentReported
from edl.scheduler.assignment.power import CLASS_NOISE, need_of, power_class
from edl.tests.properties import assignment_laws as laws

from .assigned import Service, measured, up, wants

# ------------------------------------------------------------------------------------------ speed


@pytest.mark.parametrize(
    ("speed", "power"),
    [(100, 1), (110, 1), (149, 1), (151, 2), (400, 4), (390, 4), (75, 1), (50, 0.5), (26, 0.25)],
)
def test_a_speed_is_taken_as_a_class(speed: float, power: float) -> None:
    assert power_class(speed, 100.0) == power


def test_noise_leaves_a_teacher_in_its_class() -> None:
    assert power_class(100 * CLASS_NOISE - 0.1, 100.0, 1.0) == 1
    assert power_class(170, 100.0, 1.0) == 2
    assert power_class(170, 100.0, 2.0) == 2
    assert power_class(130, 100.0, 2.0) == 1


def test_an_unknown_speed_is_the_usual_one_or_the_last_known() -> None:
    assert power_class(0.0, 100.0) == 1
    assert power_class(0.0, 100.0, 4.0) == 4
    assert power_class(100.0, 0.0) == 1


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 1.2, 3.0, 4.999])
def test_for_usual_teachers_the_need_is_what_is_wanted(ratio: float) -> None:
    report = measured("a/0", ratio)
    assert report.want - 1 < need_of(report, 1.0) <= report.want


def test_a_fast_student_of_fast_teachers_needs_as_many_samples() -> None:
    """With teachers four times as fast n is 2 and not 5, and the power needed the same."""
    slow, fast = measured("a/0", 5.0, t_t_s=0.02), measured("a/0", 1.25, t_t_s=0.005)
    assert (slow.want, fast.want) == (5, 2)
    assert need_of(slow, 1.0) == need_of(fast, 4.0) == 5


def test_what_is_asked_beyond_n_counts_in_whole_teachers() -> None:
    report = StudentReported("a/0", 4, needed=2, t_t_s=0.015, t_s_s=0.01)
    assert need_of(report, 1.0) == pytest.approx(3.5)


def test_a_student_needs_samples_not_heads() -> None:
    """Teachers at 1x, 1x and 4x: who needs four gets the one, who needs two the two."""
    service = Service(*up("ab", 100), *up("c", 400), wants("a/0", 4), wants("b/0", 2))
    assert (service.has("a/0"), service.has("b/0")) == ("c", "ab")


def test_the_largest_that_is_not_too_much_is_given_first() -> None:
    service = Service(*up("a", 100), *up("b", 200), *up("c", 400), wants("a/0", 3))
    assert service.has("a/0") == "ab"


def test_max_min_goes_by_power() -> None:
    service = Service(*up("a", 400), *up("bcde", 100), wants("a/0", 9), wants("b/0", 9))
    assert {service.has("a/0"), service.has("b/0")} == {"a", "bcde"}


def test_who_has_more_than_it_needs_trades_with_who_has_less() -> None:
    service = Service(TeacherUp("usual", 1, 100.0), TeacherDown("usual", lost=False))
    service.see(*up("a", 400), wants("a/0", 1))
    changes = service.see(wants("b/0", 4), *up("b", 100))
    assert (service.has("a/0"), service.has("b/0")) == ("b", "a")
    assert set(changes) == {"a/0", "b/0"}


def test_a_teacher_that_turns_out_slower_is_replaced() -> None:
    service = Service(*up("abcd", 100), wants("a/0", 2))
    assert service.count("a/0") == 2
    service.see(TeacherUp("a", 1, 95.0))
    assert service.count("a/0") == 2
    service.see(TeacherUp("a", 1, 25.0))
    assert service.has("a/0") == "bc"


def test_a_teacher_that_does_not_answer_has_a_stand_in_at_once_and_while_it_lasts() -> None:
    service = Service(*up("abc"), wants("a/0", 2))
    service.see(wants("a/0", 3, unreachable=1))
    assert service.count("a/0") == 3
    service.see(wants("a/0", 2))
    assert service.count("a/0") == 2


# ---------------------------------------------------------------------- more students than teachers


def test_students_that_outnumber_teachers_share_them_evenly() -> None:
    service = Service(*up("ab"), *(wants(f"s{rank}/0", 2) for rank in range(5)))
    served = Counter(service.has(f"s{rank}/0") for rank in range(5))
    assert sorted(served.values()) == [2, 3]
    assert set(served) == {"a", "b"}


def test_those_of_a_lost_teacher_are_spread_over_the_others() -> None:
    service = Service(*up("abc"), *(wants(f"s{rank}/0", 1) for rank in range(9)))
    changes = service.see(TeacherDown("c", lost=True))
    assert len(changes) == 3
    served = Counter(service.has(f"s{rank}/0") for rank in range(9))
    assert sorted(served.values()) == [4, 5]


def test_a_lone_teacher_serves_everybody() -> None:
    service = Service(*up("a"), *(wants(f"s{rank}/0", 3) for rank in range(4)))
    assert all(service.has(f"s{rank}/0") == "a" for rank in range(4))


def test_a_new_teacher_relieves_one_that_shares() -> None:
    service = Service(*up("ab"), *(wants(f"s{rank}/0", 2) for rank in range(3)))
    changes = service.see(*up("c"))
    assert len(changes) == 1
    assert sorted(service.has(f"s{rank}/0") for rank in range(3)) == ["a", "b", "c"]


def test_nobody_shares_while_another_has_two_whatever_its_priority() -> None:
    service = Service(*up("ab"), wants("high/0", 2, priority=9), wants("b/0", 1))
    service.see(wants("c/0", 1), *up("c"))
    assert service.counts == [1, 1, 1]


def test_who_goes_first_has_the_better_place() -> None:
    service = Service(*up("ab"), wants("a/0", 1), wants("b/0", 1))
    changes = service.see(wants("high/0", 1, priority=1))
    alone = service.has("high/0")
    assert [service.has("a/0"), service.has("b/0")].count(alone) == 0
    assert len(changes) == 2
    assert sum("which goes first" in change.reason for change in changes.values()) == 1


def test_places_are_exchanged_by_those_who_can_use_as_much_of_every_teacher() -> None:
    """Else who gets the worse one has somewhere better to go at once."""
    service = Service(*up("u", 100), *up("ab", 25), *up("c", 200))
    asked = [(1, 0), (1, 1), (2, 0), (2, 1), (2, 1)]
    service.see(*(wants(f"a/{i}", n, priority=p) for i, (n, p) in enumerate(asked)))
    laws.check(service.state)
    assert laws.settled(service.state, service.now)


# --------------------------------------------------------------------- one teacher feeds several


def test_light_students_have_their_own_while_there_are_enough() -> None:
    service = Service(*up("ab"), measured("a/0", 0.3), measured("b/0", 0.4))
    assert {service.has("a/0"), service.has("b/0")} == {"a", "b"}


def test_light_students_sit_together_when_another_lacks_a_teacher() -> None:
    service = Service(*up("abc"), measured("a/0", 0.3), measured("b/0", 0.4))
    service.see(wants("c/0", 2))
    assert service.count("c/0") == 2
    assert service.has("a/0") == service.has("b/0")


def test_a_light_student_joins_another_before_it_takes_from_who_needs_all() -> None:
    service = Service(*up("abc"), wants("heavy/0", 2), measured("a/0", 0.4))
    changes = service.see(measured("b/0", 0.4))
    assert set(changes) == {"b/0"}
    assert service.has("a/0") == service.has("b/0")
    assert changes["b/0"].reason.endswith("1 of 1 wanted")


def test_those_that_need_more_than_half_do_not_sit_together() -> None:
    service = Service(*up("abc"), measured("a/0", 0.6), measured("b/0", 0.6), wants("c/0", 2))
    assert service.counts == [1, 1, 1]
    assert service.has("a/0") != service.has("b/0")


def test_a_fast_teacher_feeds_as_many_as_it_can() -> None:
    service = Service(TeacherUp("usual", 1, 100.0), TeacherDown("usual", lost=False))
    service.see(*up("a", 400), *(wants(f"s{rank}/0", 1) for rank in range(4)), *up("b", 100))
    service.see(wants("more/0", 1))
    pool = Counter(service.has(name) for name in service.state.students)
    assert pool == {"a": 4, "b": 1}


def test_a_teacher_that_comes_or_is_freed_lets_one_move_out() -> None:
    service = Service(*up("ab"), measured("a/0", 0.3), measured("b/0", 0.4), wants("c/0", 1))
    assert service.has("a/0") == service.has("b/0")
    assert len(service.see(*up("c"))) == 1
    assert sorted(service.has(name) for name in ("a/0", "b/0", "c/0")) == ["a", "b", "c"]
    service.see(TeacherDown("c", lost=True))
    assert service.has("a/0") == service.has("b/0")
    assert len(service.see(StudentGone("c/0"))) == 1
    assert service.has("a/0") != service.has("b/0")
