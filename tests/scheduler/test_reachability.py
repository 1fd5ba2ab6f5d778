"""Which teachers are tried, and who counts as unreachable."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler import reachability

TEACHERS = ("a", "b")
STEP_S = 0.05


@dataclass
class Network:
    """A student, some teachers, and the paths between them, which `down` names when they are gone.

    An attempt over a path that is there succeeds at once; over one that is gone it takes its time.
    """

    teachers: tuple[str, ...] = TEACHERS
    down: set[str] = field(default_factory=set)
    owed: bool = True
    now: float = 0.0
    known: reachability.Reachability[str] = field(default_factory=reachability.Reachability)
    tried: list[tuple[str, float]] = field(default_factory=list)
    anew: list[tuple[str, float]] = field(default_factory=list)
    _ends: dict[tuple[str, float], float] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            self.known, due = reachability.tick(self.known, self.teachers, self.owed, self.now)
            for name in due:
                self.tried.append((name, self.now))
                ends_at = self.now + (reachability.ATTEMPT_S if name in self.down else 0.0)
                self._ends[name, self.now] = ends_at
            for (name, began_at), at in list(self._ends.items()):
                if at <= self.now:
                    del self._ends[name, began_at]
                    reached = name not in self.down
                    self.known, anew = reachability.attempted(self.known, name, began_at, reached)
                    self.anew += [(name, self.now)] * anew

    def answer(self, name: str) -> None:
        self.known = reachability.answered(self.known, name)


def cut_off() -> Network:
    """One whose teachers have been out of reach for a while."""
    network = Network(down=set(TEACHERS))
    network.run(5.0)
    return network


def test_while_answers_come_nobody_is_tried() -> None:
    network = Network()
    for _ in range(20):
        network.run(reachability.SILENT_S / 2)
        network.answer("a")
    assert not network.tried


def test_slow_teachers_are_tried_now_and_then_and_never_connected_to_anew() -> None:
    network = Network()
    network.run(60.0)
    times = [at for name, at in network.tried if name == "a"]
    assert 30.0 / reachability.PAUSE_S < len(times) <= 60.0 / reachability.PAUSE_S
    assert not network.anew
    assert not network.known.is_cut_off
    assert not network.known.may_be_cut_off(network.now)


def test_teachers_without_a_path_are_cut_off_and_connected_to_anew() -> None:
    network = Network(down=set(TEACHERS))
    network.run(reachability.SILENT_S + reachability.ATTEMPT_S + 3 * STEP_S)
    assert network.known.is_cut_off
    assert not network.known.unreachable, "so that nobody wants others in their place before"
    network.run((reachability.FAILURES - 1) * (reachability.ATTEMPT_S + 2 * STEP_S))
    assert network.known.unreachable == set(TEACHERS)
    network.run(3600.0)
    network.down.clear()
    back_at = network.now
    network.run(2.0)
    assert [name for name, _ in network.anew] == list(TEACHERS)
    assert max(at for _, at in network.anew) <= back_at + reachability.ATTEMPT_S + 2 * STEP_S
    assert not network.known.is_cut_off


def test_it_is_in_doubt_until_a_teacher_was_reached() -> None:
    network = Network()
    network.run(reachability.DOUBT_S / 2)
    assert not network.known.may_be_cut_off(network.now)
    network.run(reachability.DOUBT_S)
    assert network.known.may_be_cut_off(network.now)
    network.run(reachability.SILENT_S)
    assert not network.known.may_be_cut_off(network.now)


def test_who_is_heard_of_while_it_is_tried_is_left_alone() -> None:
    network = Network(down=set(TEACHERS))
    network.run(reachability.SILENT_S + reachability.ATTEMPT_S)
    for name in TEACHERS:
        network.answer(name)
    network.owed = False
    network.run(10.0)
    assert network.known == reachability.Reachability()
    assert not network.anew


@pytest.mark.parametrize("every_s", [0.05, 0.3, 1.2, 5.0])
def test_a_student_that_one_teacher_answers_is_not_cut_off(every_s: float) -> None:
    network = cut_off()
    assert network.known.is_cut_off
    network.down.discard("a")
    network.answer("a")
    for _ in range(round(60.0 / every_s)):
        assert not network.known.is_cut_off
        network.run(every_s / 2)
        assert not network.known.is_cut_off
        network.run(every_s / 2)
        network.answer("a")
    assert network.known.unreachable == {"b"}


def test_teachers_that_come_while_none_can_be_reached_change_nothing_until_one_is() -> None:
    network = Network(down={"a", "b", "c"})
    network.run(5.0)
    network.teachers = (*TEACHERS, "c")
    for _ in range(100):
        network.run(STEP_S)
        assert network.known.is_cut_off
    network.teachers = (*TEACHERS, "d")
    network.run(2 * STEP_S)
    assert not network.known.is_cut_off


KINDS = st.sampled_from(["run", "break", "mend", "answer", "owe", "join", "leave"])


@given(st.lists(st.tuples(KINDS, st.sampled_from("abc"), st.floats(0.05, 3.0)), max_size=30))
def test_a_path_that_is_back_is_found_within_a_second(script: list[tuple[str, str, float]]) -> None:
    network = Network()
    for kind, name, seconds in script:
        match kind:
            case "run":
                network.run(seconds)
            case "break":
                network.down.add(name)
            case "mend":
                network.down.discard(name)
            case "answer" if name not in network.down:
                network.answer(name)
            case "owe":
                network.owed = not network.owed
            case "join":
                network.teachers = tuple({*network.teachers, name})
            case "leave":
                network.teachers = tuple({*network.teachers} - {name})
        assert network.known.unreachable <= set(network.teachers) | set(network.known.attempts)
    gone = network.known.unreachable & set(network.teachers)
    network.down.clear()
    network.anew.clear()
    network.run(1.0)
    assert {name for name, _ in network.anew} == gone
    assert not network.known.unreachable
