"""A node's seat at the job board, when its lease has run out."""

from __future__ import annotations

from typing import Any

import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.student.supervisor.seat import Seat

JOB, TTL_S = "job", 5.0
OVER = {"kind": "finished", "step": 9}
WORLD: dict[str, Any] = {
    "nodes": [], "restored": 0, "keeper": 0, "failures": [], "barred": [], "reason": "",
    "previous_ranks": 0,
}  # fmt: skip


class Board(MemoryBoard):
    """One whose time passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1e9
        super().__init__(lambda: self.now_s)

    def names(self) -> list[str]:
        return [node.node_id for node in self.nodes(JOB)]


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def seat(board: Board) -> Seat:
    """Of node b, beside node a."""
    board.join(JOB, "a", {}, 3600.0)
    assert board.lead(JOB, "a", 3600.0)
    assert board.publish(JOB, "a", 1, WORLD)
    assert board.publish(JOB, "a", 2, WORLD)
    seat = Seat(board, JOB, "b", lambda view: None, TTL_S)
    seat._tick()
    assert board.names() == ["a", "b"]
    return seat


def stand_still(board: Board, seat: Seat) -> None:
    """The node does nothing until its lease has long run out."""
    board.now_s += 60.0
    seat._beaten_s = 0.0


def test_a_node_that_stood_still_joins_again(board: Board, seat: Seat) -> None:
    stand_still(board, seat)
    assert board.names() == ["a"]
    seat._tick()
    assert board.names() == ["a", "b"]
    assert seat.view.outcome is None


def test_one_that_stood_still_while_the_job_ended_does_not_begin_it_again(
    board: Board, seat: Seat
) -> None:
    board.finish(JOB, OVER)
    board.leave(JOB, "a")
    stand_still(board, seat)
    seat._tick()
    assert seat.view.outcome == OVER


def test_the_end_of_an_earlier_run_is_not_its_own(board: Board, seat: Seat) -> None:
    """Redis comes back with what it had written down before this run."""
    seat._board = former = Board()
    assert former.lead(JOB, "c", 1.0)
    assert former.publish(JOB, "c", 1, WORLD)
    former.finish(JOB, OVER)
    stand_still(former, seat)
    seat._tick()
    assert former.names() == ["b"]
    assert seat.view.outcome is None


def test_who_comes_to_a_job_that_has_ended_begins_it_again(board: Board) -> None:
    board.join(JOB, "a", {}, 3600.0)
    board.finish(JOB, OVER)
    board.leave(JOB, "a")
    seat = Seat(board, JOB, "b", lambda view: None, TTL_S)
    seat._tick()
    assert board.names() == ["b"]
    assert seat.view.outcome is None
