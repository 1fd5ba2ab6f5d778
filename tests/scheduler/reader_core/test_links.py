"""Which connections there are to teachers, and when each is probed."""

from __future__ import annotations

import pytest

from edl.scheduler.reachability import FULL_PAUSE_S, REFUSED_PAUSE_S
from edl.scheduler.reader_core.events import (
    Assigned,
    FailureCause,
    Peer,
    ProbeFailed,
    RequestFailed,
)
from edl.scheduler.reader_core.instructions import (
    CloseConnection,
    Instruction,
    OpenConnection,
    Probe,
)
from edl.scheduler.reader_core.links import TeacherLinks

A, B = Peer("a", "a:1", "m", 1), Peer("b", "b:1", "m", 1)


class Longest:
    """Draws the longest pause."""

    def random(self) -> float:
        return 0.999


class World:
    """Links in virtual time."""

    def __init__(self) -> None:
        self.out: list[Instruction] = []
        self.links = TeacherLinks(Longest(), self.out.append, lambda level, text, teacher: None)
        self.now = 0.0

    def assign(self, *peers: Peer, lost: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
        return self.links.update(Assigned(peers, frozenset(lost)), self.now)

    def passes(self, seconds: float = 0.0) -> list[Instruction]:
        """What has been said since, once so much time has passed."""
        self.now += seconds
        self.links.start_probes(self.now)
        said, self.out[:] = self.out[:], []
        return said


@pytest.fixture
def world() -> World:
    """Teacher `a` has answered its first probe."""
    made = World()
    made.assign(A)
    assert made.passes() == [OpenConnection(1, A), Probe(1, "a")]
    made.links.probe_answered("a")
    return made


def test_however_often_a_teacher_is_to_be_probed_one_probe_is_under_way(world: World) -> None:
    for _ in range(3):
        world.links.plan_probe("a", world.now, 60.0)
    assert world.passes(59.0) == []
    world.links.plan_probe("a", world.now)  # now, not after the pause
    assert world.passes() == [Probe(1, "a")]
    world.links.plan_probe("a", world.now)
    assert world.passes(60.0) == []


def test_pauses_between_probes_grow_and_end_when_it_is_connected_to_again(world: World) -> None:
    world.links.plan_probe("a", world.now)
    world.passes()
    for _ in range(8):
        world.links.probe_failed(ProbeFailed("a", 1, "lost", "refused"), world.now)
        world.passes(60.0)
    world.links.probe_failed(ProbeFailed("a", 1, "lost", "refused"), world.now)
    assert len(world.links.unavailable) == 1
    assert world.passes(0.01) == []
    world.links.plan_probe("a", world.now)
    assert world.passes() == [Probe(1, "a")]
    world.links.probe_answered("a")
    assert len(world.links.unavailable) == 0


def test_requests_that_fail_together_are_one_failure(world: World) -> None:
    """After the first it is probed at once, after the second behind a short pause."""

    def fail(requests: int) -> None:
        for _ in range(requests):
            world.links.retry(RequestFailed("a", 1, 0, "failed", "for a while"), 0.0, world.now)

    fail(8)
    assert world.passes() == [Probe(1, "a")]
    fail(8)
    assert world.passes(60.0) == [], "it is being probed"
    world.links.probe_answered("a")
    fail(1)
    assert world.passes() == []
    assert world.passes(0.2) == [Probe(1, "a")]


@pytest.mark.parametrize(
    ("failure", "retry_after_s", "pause_s"),
    [
        ("full", 7.0, 7.0),
        ("full", 1e6, FULL_PAUSE_S),
        ("shut out", None, REFUSED_PAUSE_S),
    ],
)
def test_a_teacher_is_probed_when_it_will_have_room_or_an_operator_has_had_time(
    world: World, failure: FailureCause, retry_after_s: float | None, pause_s: float
) -> None:
    failed = RequestFailed("a", 1, 0, failure, "not now", retry_after_s)
    world.links.retry(failed, 0.0, world.now)
    assert world.links.is_shut_out is (failure == "shut out")
    assert world.passes(0.99 * pause_s) == []
    assert world.passes(0.02 * pause_s) == [Probe(1, "a")]


def test_a_teacher_that_is_started_anew_has_another_connection(world: World) -> None:
    again = Peer("a", "a:2", "m", 2)
    assert world.assign(again) == (["a"], [])
    assert world.passes() == [CloseConnection(1), OpenConnection(2, again), Probe(2, "a")]
    trouble = "teacher a was lost: its registered facts changed: address, incarnation"
    assert world.links.last_trouble == trouble
    assert (world.links.record_message("a", 1), world.links.record_message("a", 2)) == (False, True)


def test_a_teacher_that_leaves_keeps_its_connection_until_it_has_answered(world: World) -> None:
    assert world.assign(B) == ([], ["a"])
    assert not world.links.is_assigned("a")
    assert world.passes() == [OpenConnection(2, B), Probe(2, "b")]
    assert world.links.close_if_leaving("a", world.now)
    assert world.passes() == [CloseConnection(1)]


def test_a_teacher_that_comes_back_before_it_has_left_is_probed_first(world: World) -> None:
    world.assign(B)
    world.passes()
    world.assign(A, B)
    assert world.links.is_assigned("a")
    assert world.passes() == [Probe(1, "a")]


def test_a_teacher_that_comes_back_is_not_judged_by_what_it_was_before(world: World) -> None:
    world.links.mark_useless("a")
    world.links.probe_failed(ProbeFailed("a", 1, "shut out", "no token"), world.now)
    world.assign(lost=("a",))
    world.assign(A)
    assert (len(world.links.unavailable), world.links.is_shut_out) == (0, False)
