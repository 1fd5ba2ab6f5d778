"""A job of high priority joins a full pool, over whole managers in virtual time."""

from __future__ import annotations

from typing import Any

from edl.tests.coordinator.world import GRACE_S, World

PROMISED_S = 15.0
LOW_MIN, HIGH_N = 2, 4


def test_it_has_its_n_in_time_and_others_keep_their_min() -> None:
    world = World(managers=2)
    for number in range(24):
        world.teacher(f"t{number}")
    low = [world.student(f"low{n}/0", at=n % 2, want=8, min=LOW_MIN) for n in range(4)]
    world.run(GRACE_S + 1)
    assert [len(student.stream.teachers or []) for student in low] == [6] * 4, "it is full"
    wants: dict[str, Any] = {"want": HIGH_N, "needed": HIGH_N, "min": 1, "priority": 5}
    high = [world.student(f"high/{rank}", at=rank % 2, **wants) for rank in range(4)]

    def all_have_their_n() -> bool:
        assert all(len(student.stream.teachers or []) >= LOW_MIN for student in low)
        return all(len(student.stream.teachers or []) == HIGH_N for student in high)

    world.run(PROMISED_S, until=all_have_their_n)
    world.run(PROMISED_S)
    assert all_have_their_n()
    assert [len(student.stream.teachers or []) for student in low] == [LOW_MIN] * 4
    assert not world.log("lost")


def test_a_priority_that_is_raised_later_counts_as_soon() -> None:
    world = World()
    for number in range(6):
        world.teacher(f"t{number}")
    a, b = (world.student(f"{name}/0", want=5, min=1) for name in "ab")
    world.run(GRACE_S + 1)
    assert len(a.stream.teachers or []) == len(b.stream.teachers or []) == 3
    b.fields["priority"] = 1
    world.run(PROMISED_S, until=lambda: len(b.stream.teachers or []) == 5)
    world.run(1.0)
    assert len(a.stream.teachers or []) == 1
