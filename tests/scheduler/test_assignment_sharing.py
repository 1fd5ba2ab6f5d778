"""Assignment of unequal and shared teachers, and its stability over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.assignment import (
    AssignmentChange,
    StudentReported,
    TeacherDown,
    TeacherUp,
    next_due,
)
from edl.scheduler.assignment.state import CLASS_NOISE, need_of, power_class
from edl.scheduler.debounce import DRIFT_S, FALL_S, RISE_S, Debounced, begin, elapse, follow

from .assignment_service import Service, measured, up, wants


class TestSharing:
    @pytest.mark.parametrize(
        ("speed", "known", "power"),
        [(110, None, 1), (149, None, 1), (151, None, 2), (390, None, 4), (50, None, 0.5),
         (26, None, 0.25), (100 * CLASS_NOISE - 0.1, 1.0, 1), (170, 1.0, 2), (170, 2.0, 2),
         (130, 2.0, 1), (0, None, 1), (0, 4.0, 4)],
    )  # fmt: skip
    def test_power_class(self, speed: float, known: float | None, power: float) -> None:
        assert power_class(speed, 100.0, known) == power
        assert power_class(100.0, 0.0, known) == (known or 1)

    def test_light_students_share_a_teacher(self) -> None:
        service = Service(*up("abc"), measured("a/0", 0.3), measured("b/0", 0.4))
        service.see(wants("c/0", 2))
        assert service.count("c/0") == 2
        assert service.has("a/0") == service.has("b/0")
        service = Service(*up("abc"), wants("heavy/0", 2), measured("a/0", 0.4))
        changes = service.see(measured("b/0", 0.4))
        assert set(changes) == {"b/0"}
        assert service.has("a/0") == service.has("b/0")

    @pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 1.2, 3.0, 4.999])
    def test_need_of_reference_teachers_is_the_want(self, ratio: float) -> None:
        report = measured("a/0", ratio)
        assert report.want - 1 < need_of(report, 1.0) <= report.want

    def test_need_counts_samples_per_second(self) -> None:
        """With teachers four times as fast n is 2 and not 5, and the power needed the same."""
        slow, fast = measured("a/0", 5.0, t_t_s=0.02), measured("a/0", 1.25, t_t_s=0.005)
        assert (slow.want, fast.want) == (5, 2)
        assert need_of(slow, 1.0) == need_of(fast, 4.0) == 5
        report = StudentReported("a/0", 4, needed=2, t_t_s=0.015, t_s_s=0.01)
        assert need_of(report, 1.0) == pytest.approx(3.5)

    def test_student_that_wants_fewer_than_it_needs_uses_them_fully(self) -> None:
        """As with a limit of one teacher, or if measured times overestimate the need."""
        report = replace(measured("a/0", 2.3), want=1)
        assert need_of(report, 1.0) == 1
        service = Service(*up("abc"), report, replace(report, student_id="b/0"))
        service.see(wants("c/0", 3))
        assert service.counts == [1, 1, 1]
        assert service.has("a/0") != service.has("b/0")

    def test_unreachable_teacher_is_replaced_meanwhile(self) -> None:
        service = Service(*up("abc"), wants("a/0", 2))
        service.see(wants("a/0", 3, unreachable=1))
        assert service.count("a/0") == 3
        service.see(wants("a/0", 2))
        assert service.count("a/0") == 2

    def test_teachers_without_labels_fill_no_share(self) -> None:
        service = Service(*up("abcd"), wants("a/0", 4))
        service.see(wants("b/0", 4))
        bad = service.has("a/0")
        assert (len(bad), service.count("b/0")) == (2, 2)
        service.see(wants("a/0", 6, unavailable=bad))
        assert set(service.has("a/0")) > set(bad), "it keeps them besides"
        assert service.count("a/0") == 3
        assert service.count("b/0") == 1, "of the teachers that label both have one"
        service.see(wants("a/0", 4))
        assert service.counts == [2, 2], "they label again"

    def test_teacher_without_labels_is_given_back_once_there_are_enough(self) -> None:
        service = Service(*up("ab"), wants("a/0", 1))
        service.see(wants("a/0", 2, unavailable="a"))
        assert (service.has("a/0"), service.idle) == ("b", {"a"})
        service.see(wants("a/0", 2, unavailable="a", priority=1))
        assert service.has("a/0") == "b", "it reports again, before it knows that it has lost a"

    def test_student_that_gets_labels_from_nobody_shares_a_teacher(self) -> None:
        service = Service(*up("ab"), wants("a/0", 1), wants("b/0", 1))
        service.see(wants("a/0", 2, unavailable="a"))
        assert (service.has("a/0"), service.has("b/0")) == ("ab", "b")

    def test_student_that_reaches_nobody_takes_no_more_than_its_share(self) -> None:
        service = Service(*up("abcd"), wants("a/0", 2), wants("b/0", 2))
        service.see(wants("a/0", 4, unavailable=service.has("a/0"), cut_off=True))
        assert service.counts == [2, 2]


def teachers(count: int) -> list[TeacherUp]:
    return [TeacherUp(f"t{index}", 1, 100.0) for index in range(count)]


class TestStability:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("pool", [60, 24, 8])
    def test_noisy_wants_move_little(self, pool: int, seed: int) -> None:
        """Wants that are off by up to 30 % for five minutes, in plenty and in shortage."""
        noise = Random(seed)
        bases = [2, 4, 6, 8, 10]
        service = Service(*teachers(pool))
        service.see(*(wants(f"job{index}/0", base) for index, base in enumerate(bases)))
        moved: list[AssignmentChange] = []
        for _ in range(300):
            moved += service.wait(1.0)
            noisy = [round(base * noise.uniform(0.7, 1.3)) for base in bases]
            reports = [wants(f"job{index}/0", want) for index, want in enumerate(noisy)]
            moved += service.see(*reports).values()
        for index in range(len(bases)):
            assert sum(change.student_id == f"job{index}/0" for change in moved) <= 2
        assert len(moved) <= 2 * len(bases)

    def test_lasting_want_is_granted(self) -> None:
        service = Service(*teachers(12), wants("a/0", 4))
        service.see(wants("a/0", 5))
        assert service.count("a/0") == 4
        changes = service.wait(15)
        assert [len(change.teachers) for change in changes] == [5]
        service.see(wants("a/0", 4))
        assert service.wait(29) == []
        assert [len(change.teachers) for change in service.wait(1)] == [4]

    @pytest.mark.parametrize("seed", range(4))
    def test_one_change_moves_few(self, seed: int) -> None:
        noise = Random(seed)
        reports = [wants(f"job{i}/0", noise.randint(1, 9)) for i in range(30)]
        service = Service(*teachers(100), *reports)
        for number in range(300):
            if noise.random() < 0.5:
                changes = service.see(TeacherUp(f"x{number}", 1, 100.0))
                assert len(changes) <= 1
            else:
                name = noise.choice(list(service.state.teachers))
                holders = [s for s, e in service.state.students.items() if name in e.teachers]
                changes = service.see(TeacherDown(name, lost=True))
                others = {s for s, c in changes.items() if s not in holders and not c.lost}
                assert len(others) <= len(holders) <= 1
                for other in others:
                    # It gave one, as it had at least two more than the other has left.
                    had = service.count(other) + 1
                    assert service.count(holders[0]) <= had

    def test_lasting_change_of_speed_counts(self) -> None:
        service = Service(*teachers(4), wants("a/0", 2))
        slow = service.state.students["a/0"].teachers[0]
        assert service.see(TeacherUp(slow, 1, 50.0)) == {}
        assert service.wait(29) == []
        (change,) = service.wait(1)  # it is not told again: what was said last stands
        assert slow not in change.teachers
        assert f"teacher {slow} is slower than before" in change.reason
        assert next_due(service.state) is None
        service = Service(*teachers(4), wants("a/0", 2))
        for _ in range(10):
            service.see(TeacherUp("t0", 1, 50.0))
            assert service.wait(20) == []
            service.see(TeacherUp("t0", 1, 95.0))
            assert next_due(service.state) is None

    def test_first_speed_and_large_change_count_at_once(self) -> None:
        service = Service(*teachers(1), TeacherUp("new", 1), wants("a/0", 9))
        powers = [entry.power for entry in service.state.teachers.values()]
        assert powers == [1, 1]
        for speed, power in ((200.0, 2), (50.0, 1 / 2), (90.0, 1 / 2), (200.0, 2)):
            service.see(TeacherUp("new", 1, speed))
            assert service.state.teachers["new"].power == power
        service = Service(*teachers(2), wants("a/0", 2))
        service.see(TeacherUp("t1", 2, 50.0))
        assert service.state.teachers["t1"].power == 1 / 2


def after(wishes: Iterable[float], steady: Debounced, start: float = 0.0) -> Debounced:
    """One report a second."""
    for second, wish in enumerate(wishes):
        steady = follow(steady, wish, False, start + second)
    return steady


Reports = list[tuple[int, bool, float]]
wishes = st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.floats(0, 40)), max_size=60)


class TestDebounce:
    def test_first_zero_and_large_values_count_at_once(self) -> None:
        assert begin(3).value == 3
        assert begin(3).due is None
        assert follow(begin(4), 5, True, 0.0) == begin(5)
        assert follow(begin(4), 8, False, 0.0) == begin(8)
        assert follow(begin(4), 7, False, 0.0).value == 4
        assert follow(begin(4), 3, True, 0.0).value == 4
        assert follow(begin(4), 0, False, 0.0) == begin(0)
        assert follow(begin(0), 1, False, 0.0) == begin(1)

    def test_rise_counts_when_it_has_lasted(self) -> None:
        steady = follow(begin(4), 5, False, 100.0)
        assert steady.value == 4
        assert steady.due == 100.0 + RISE_S
        assert elapse(steady, 100.0 + RISE_S - 0.1).value == 4
        assert elapse(steady, 100.0 + RISE_S) == begin(5)
        steady = after([5] * 10 + [4] + [5] * 14, begin(4))
        assert steady.value == 4
        assert steady.due == 11 + RISE_S
        assert after([6, 7] * 8, begin(4)).value == pytest.approx(97 / 15)

    @pytest.mark.parametrize(("high", "low"), [(5, 4), (2, 1), (9, 8), (4, 1)])
    def test_fall_counts_when_it_has_lasted(self, high: int, low: int) -> None:
        steady = follow(begin(high), low, False, 0.0)
        assert steady.due == FALL_S
        assert elapse(steady, FALL_S - 0.1).value == high
        assert elapse(steady, FALL_S) == begin(low)

    def test_fall_goes_to_the_greatest_and_small_falls_take_longer(self) -> None:
        assert after([3, 5, 4] * 11, begin(8)).value == 5
        steady = follow(begin(11), 10, False, 0.0)
        assert elapse(steady, DRIFT_S - 0.1).value == 11
        assert elapse(steady, DRIFT_S) == begin(10)

    @given(wishes)
    def test_value_is_within_the_reports(self, reports: Reports) -> None:
        steady, now, said = begin(7), 0.0, [7]
        for wish, urgent, seconds in reports:
            now += seconds
            steady = follow(steady, wish, urgent, now)
            said.append(wish)
            assert min(said) <= steady.value <= max(said)
            assert (steady.value == 0) == (wish == 0)
            assert steady.due is None or steady.due > now

    @given(wishes, st.integers(1, 20))
    def test_lasting_report_comes_into_force(self, reports: Reports, last: int) -> None:
        steady, now = begin(7), 0.0
        for wish, urgent, seconds in [*reports, (last, False, 0.0)]:
            now += seconds
            steady = follow(steady, wish, urgent, now)
        while steady.due is not None:
            now = steady.due
            steady = elapse(steady, now)
        assert steady == begin(last)
