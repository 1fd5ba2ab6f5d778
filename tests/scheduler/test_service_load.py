"""What autoscaling is told of a service: sums over its students."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.service_load import StudentLoad, Waits, left_to_fleets, load_of, may_begin

COUNTS = st.integers(0, 50)


def test_the_average_teacher_of_each_student_counts_by_what_it_trains() -> None:
    quick = StudentLoad(want=5, t_t_s=0.04, t_s_s=0.01, starves=True, samples_per_s=90.0)
    slow = StudentLoad(want=1, t_t_s=0.02, t_s_s=0.04, starves=False, samples_per_s=20.0)
    load = load_of((quick, slow), Waits(3.0, 1.0), serving=4, starting=1)
    assert (load.students, load.wanted, load.starving, load.samples_per_s) == (2, 6, 1, 110.0)
    assert (load.serving, load.starting, load.starved_s, load.blocked_s) == (4, 1, 3.0, 1.0)
    assert load.demand_per_s == pytest.approx(125.0)
    assert load.ratio == pytest.approx(4.0 + 0.5)


def test_what_one_of_them_does_not_know_nobody_knows() -> None:
    known = StudentLoad(want=2, t_t_s=0.02, t_s_s=0.01, starves=False)
    for unknown in (known._replace(t_t_s=0.0), known._replace(t_s_s=0.0)):
        load = load_of((known, unknown), Waits(), serving=1)
        assert load.ratio is None
        assert load.wanted == 4
    assert load_of((), Waits(), serving=3).ratio is None


def test_waits_of_those_that_have_left_stay_and_sums_that_begin_anew_take_nothing() -> None:
    waits = Waits(5.0, 7.0).grown(Waits(1.0, 1.0), Waits(3.0, 1.5))
    assert waits == Waits(7.0, 7.5)
    assert waits.grown(Waits(9.0, 9.0), Waits(0.0, 9.5)) == Waits(7.0, 8.0)


@given(COUNTS, COUNTS, COUNTS)
def test_who_has_all_members_may_begin(students: int, holding: int, teachers: int) -> None:
    assert may_begin(recovering=False, students=students, holding=holding, teachers=teachers)


@given(COUNTS, COUNTS, COUNTS)
def test_while_members_come_back_only_a_new_service_may_begin(
    students: int, holding: int, teachers: int
) -> None:
    begins = may_begin(recovering=True, students=students, holding=holding, teachers=teachers)
    assert begins == (students > 0 and holding == teachers == 0)


@given(COUNTS, COUNTS)
def test_fleets_run_what_others_leave(desired: int, others: int) -> None:
    left = left_to_fleets(desired, others)
    assert 0 <= left <= desired
    assert left + others >= desired
    assert left + others == desired or left == 0
