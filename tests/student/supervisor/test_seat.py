"""A node's seat at the job board, when its lease has run out."""

from __future__ import annotations

import time

import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.student.supervisor.seat import Seat

JOB, TTL_S = "job", 0.01


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
    seat = Seat(board, JOB, "b", lambda view: None, TTL_S)
    seat._tick()
    assert board.names() == ["a", "b"]
    return seat


def stand_still(board: Board) -> None:
    """The node does nothing until its lease has long run out."""
    board.now_s += 60.0
    time.sleep(TTL_S)


def test_a_node_that_stood_still_joins_again(board: Board, seat: Seat) -> None:
    stand_still(board)
    assert board.names() == ["a"]
    seat._tick()
    assert board.names() == ["a", "b"]
    assert seat.view.outcome is None


def test_one_that_stood_still_while_the_job_ended_does_not_begin_it_again(
    board: Board, seat: Seat
) -> None:
    board.finish(JOB, {"kind": "finished", "step": 9})
    board.leave(JOB, "a")
    stand_still(board)
    for _ in range(2):
        seat._tick()
        assert board.names() == []
        assert seat.view.outcome == {"kind": "finished", "step": 9}
        time.sleep(TTL_S)


def test_who_comes_to_a_job_that_has_ended_begins_it_again(board: Board) -> None:
    board.join(JOB, "a", {}, 3600.0)
    board.finish(JOB, {"kind": "finished", "step": 9})
    board.leave(JOB, "a")
    seat = Seat(board, JOB, "b", lambda view: None, TTL_S)
    seat._tick()
    assert board.names() == ["b"]
    assert seat.view.outcome is None
