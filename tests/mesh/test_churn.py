"""What the demo does to teachers, and when: driven by figures and a clock of the test's own."""

from __future__ import annotations

from typing import Any

import pytest

from edl.distill_reader import ReaderStats
from edl.mesh.demo.churn import FIGURES_AGE_S, HELD_AT_MOST_S, Churn


class Mesh:
    """Records what is done to it, and how the reader sees it."""

    def __init__(self, batches: int = 90) -> None:
        self.now = 0.0
        self.done: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.stats: dict[str, Any] = {
            "teachers": ("a", "b"),
            "in_flight": (("a", 1), ("b", 2)),
        }
        self.churn = Churn(
            hold=lambda teacher: self.done.append(("hold", teacher)),
            kill=lambda teacher: self.done.append(("kill", teacher)),
            start=lambda teacher: self.done.append(("start", teacher)),
            newcomer="c",
            batches=batches,
            say=self.said.append,
            clock=lambda: self.now,
        )

    def batch(self, number: int, wait_s: float = 0.0) -> None:
        self.now += wait_s
        self.churn.on_batch(number, ReaderStats(**self.stats))

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.churn.events]


def test_the_whole_story() -> None:
    mesh = Mesh()
    mesh.batch(29)
    assert mesh.done == []
    mesh.batch(30)
    assert mesh.done == [("hold", "b")]  # the busiest
    mesh.batch(31, FIGURES_AGE_S)
    assert mesh.done[-1] == ("kill", "b")
    mesh.stats["resends"] = 2
    mesh.batch(32)
    mesh.batch(59)
    assert mesh.kinds == ["kill", "resent"]
    mesh.batch(60)
    assert mesh.done[-1] == ("start", "c")
    assert mesh.churn.newcomer_is_late
    mesh.stats["teachers"] = ("a", "c")
    mesh.batch(70, 2.0)
    assert not mesh.churn.newcomer_is_late
    assert mesh.kinds == ["kill", "resent", "start", "join"]
    assert [event.batch for event in mesh.churn.events] == [31, 32, 60, 70]
    assert mesh.churn.events[-1].at_s == pytest.approx(2.0 + FIGURES_AGE_S)
    assert len(mesh.said) == 4
    mesh.batch(90)
    assert len(mesh.done) == 3


def test_nobody_idle_is_killed() -> None:
    mesh = Mesh()
    mesh.stats["in_flight"] = (("a", 0), ("b", 0))
    mesh.batch(40, 10.0)
    assert mesh.done == []
    mesh.stats["in_flight"] = (("a", 1), ("b", 0))
    mesh.batch(41)
    assert mesh.done == [("hold", "a")]


def test_the_victim_dies_only_when_fresh_figures_show_what_it_holds() -> None:
    mesh = Mesh()
    mesh.batch(30)
    mesh.batch(31, FIGURES_AGE_S / 2)
    assert mesh.kinds == []
    mesh.stats["in_flight"] = (("a", 1), ("b", 0))
    mesh.batch(32, FIGURES_AGE_S)
    assert mesh.kinds == []
    mesh.stats["in_flight"] = (("a", 1), ("b", 1))
    mesh.batch(33)
    assert mesh.kinds == ["kill"]


def test_a_victim_that_gets_nothing_is_not_held_for_ever() -> None:
    mesh = Mesh()
    mesh.batch(30)
    mesh.stats["in_flight"] = (("a", 1), ("b", 0))
    mesh.batch(31, HELD_AT_MOST_S)
    assert mesh.kinds == ["kill"]


def test_a_new_teacher_comes_even_if_no_resend_was_seen() -> None:
    mesh = Mesh()
    mesh.batch(30)
    mesh.batch(45, FIGURES_AGE_S)
    mesh.batch(60)
    assert mesh.kinds == ["kill", "start"]


def test_one_late_look_catches_up_with_all_that_is_due() -> None:
    mesh = Mesh()
    mesh.stats["resends"] = 1
    mesh.batch(88)
    mesh.batch(89, FIGURES_AGE_S)
    assert mesh.kinds == ["kill", "resent", "start"]
