"""What the rule promises over time: noise moves nobody, storms settle, priority is served soon."""

from __future__ import annotations

from random import Random

import pytest

from edl.scheduler.assignment import Change, StudentReported, TeacherDown, TeacherUp, next_due

from .assigned import Service, measured, wants


def teachers(count: int) -> list[TeacherUp]:
    return [TeacherUp(f"t{index}", 1, 100.0) for index in range(count)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pool", [60, 24, 8])
def test_noisy_wants_move_each_student_twice_at_most(pool: int, seed: int) -> None:
    """Wants that are off by up to 30 % for five minutes, in plenty and in shortage."""
    noise = Random(seed)
    bases = [2, 4, 6, 8, 10]
    service = Service(*teachers(pool))
    service.see(*(wants(f"job{index}/0", base) for index, base in enumerate(bases)))
    moved: list[Change] = []
    for _ in range(300):
        moved += service.wait(1.0)
        reports = [
            wants(f"job{index}/0", round(base * noise.uniform(0.7, 1.3)))
            for index, base in enumerate(bases)
        ]
        moved += service.see(*reports).values()
    for index in range(len(bases)):
        assert sum(change.student_id == f"job{index}/0" for change in moved) <= 2
    assert len(moved) <= 2 * len(bases)


@pytest.mark.parametrize("seed", range(8))
def test_a_noisy_ratio_moves_a_student_twice_at_most(seed: int) -> None:
    """The same for measured times: the power of teachers, t_t and so n flicker."""
    noise = Random(seed)
    service = Service(*teachers(12), measured("a/0", 3.5), wants("b/0", 4))
    moved = 0
    for _ in range(300):
        service.wait(1.0)
        speeds = [TeacherUp(f"t{i}", 1, 100 * noise.uniform(0.8, 1.25)) for i in range(12)]
        scale = noise.uniform(0.85, 1.15)
        report = measured("a/0", 3.5 * scale, t_t_s=0.01 * scale)
        moved += len(service.see(*speeds, report))
    assert moved <= 2


def test_a_wish_that_lasts_is_granted() -> None:
    service = Service(*teachers(12), wants("a/0", 4))
    service.see(wants("a/0", 5))
    assert service.count("a/0") == 4
    changes = service.wait(15)
    assert [len(change.teachers) for change in changes] == [5]
    service.see(wants("a/0", 4))
    assert service.wait(29) == []
    assert [len(change.teachers) for change in service.wait(1)] == [4]


def test_who_starves_is_helped_at_once() -> None:
    service = Service(*teachers(12), wants("a/0", 4))
    service.see(StudentReported("a/0", 5, urgent=True))
    assert service.count("a/0") == 5


def test_a_job_of_high_priority_has_its_n_at_once_and_others_keep_their_min() -> None:
    """It joins a full pool: well within the 15 s that are promised."""
    low = [wants(f"low{index}/0", 8, min=2, priority=0) for index in range(4)]
    service = Service(*teachers(24), *low)
    assert service.counts == [6, 6, 6, 6]
    high = [measured(f"high/{rank}", 4.0, priority=5) for rank in range(4)]
    service.see(*high)
    assert service.counts == [2, 2, 2, 2, 4, 4, 4, 4]
    service.see(*teachers(30))
    assert service.counts[4:] == [4, 4, 4, 4]
    assert sorted(service.counts[:4]) == [3, 3, 4, 4]


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_joins_and_leaves_settles_and_starves_nobody(seed: int) -> None:
    """A thousand teachers come or go within 10 s: nobody is below its fair share - 1 for 2 s."""
    storm = Random(seed)
    service = Service(*(wants(f"job{index}/0", 40) for index in range(20)))
    live: dict[str, int] = {}
    for number in range(1000):
        service.wait(0.01)
        if live and storm.random() < 0.4:
            name = storm.choice(list(live))
            del live[name]
            service.see(TeacherDown(name, lost=storm.random() < 0.5))
        else:
            live[f"t{number}"] = number
            service.see(TeacherUp(f"t{number}", number))
        share = min(40, len(live) // 20)
        assert min(service.counts) >= share - 1, "below its fair share at any time at all"
    counts = service.counts
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == min(len(live), 20 * 40)
    assert service.wait(600) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_single_teacher_moves_one_student_and_whom_fairness_takes_one_from(seed: int) -> None:
    noise = Random(seed)
    service = Service(*teachers(100), *(wants(f"job{i}/0", noise.randint(1, 9)) for i in range(30)))
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
            for other in others:  # it gave one, as it had at least two more than the other has left
                had = service.count(other) + 1
                assert service.count(holders[0]) <= had


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("every_s", [1.0, 2.0, 6.0])
def test_a_loaded_machine_moves_each_student_twice_at_most(every_s: float, seed: int) -> None:
    """Times of teachers that are off by half for five minutes, as their students see them too."""
    noise = Random(seed)
    names = [f"t{index}" for index in range(8)]
    ratios = {"a/0": 1.5, "b/0": 2.5, "c/0": 5.5}
    service = Service(*(TeacherUp(name, 1, 100.0) for name in names))
    service.see(*(measured(student, ratio) for student, ratio in ratios.items()))
    moved: list[Change] = []
    for _ in range(int(300 / every_s)):
        moved += service.wait(every_s)
        for name in names:
            moved += service.see(TeacherUp(name, 1, 100 / noise.uniform(0.5, 1.5))).values()
        for student, ratio in ratios.items():
            scale = sum(noise.uniform(0.5, 1.5) for _ in range(3)) / 3
            report = measured(student, ratio * scale, t_t_s=0.01 * scale)
            moved += service.see(report).values()
    for student in ratios:
        assert sum(change.student_id == student for change in moved) <= 2


def test_a_teacher_is_of_another_class_when_its_speed_has_lasted() -> None:
    service = Service(*teachers(4), wants("a/0", 2))
    slow = service.state.students["a/0"].teachers[0]
    assert service.see(TeacherUp(slow, 1, 50.0)) == {}
    assert service.wait(29) == []
    (change,) = service.wait(1)  # it is not told again: what was said last stands
    assert slow not in change.teachers
    assert f"teacher {slow} is slower than was known" in change.reason
    assert next_due(service.state) is None


def test_a_speed_that_comes_back_meanwhile_changes_nothing() -> None:
    service = Service(*teachers(4), wants("a/0", 2))
    for _ in range(10):
        service.see(TeacherUp("t0", 1, 50.0))
        assert service.wait(20) == []
        service.see(TeacherUp("t0", 1, 95.0))
        assert next_due(service.state) is None


def test_a_first_speed_and_one_that_is_far_off_count_at_once() -> None:
    service = Service(*teachers(1), TeacherUp("new", 1), wants("a/0", 9))
    powers = [entry.power for entry in service.state.teachers.values()]
    assert powers == [1, 1]
    for speed, power in ((200.0, 2), (50.0, 1 / 2), (90.0, 1 / 2), (200.0, 2)):
        service.see(TeacherUp("new", 1, speed))
        assert service.state.teachers["new"].power == power


def test_a_teacher_that_is_started_anew_is_measured_anew() -> None:
    service = Service(*teachers(2), wants("a/0", 2))
    service.see(TeacherUp("t1", 2, 50.0))
    assert service.state.teachers["t1"].power == 1 / 2
