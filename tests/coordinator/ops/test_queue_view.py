"""The elastic jobs of a queue in one line of `edl status`."""

from __future__ import annotations

from edl.coordinator.ops.queue_view import line, read_queue, to_json
from edl.coordinator.queue import Progress
from edl.coordinator.queue.memory_board import MemoryQueue
from edl.scheduler.job_states import State


def queue_of(*states: State) -> MemoryQueue:
    board = MemoryQueue()
    assert board.take("r", {"host": "h1", "slots": 4, "taken": [0, 2]}, 60.0)
    for number, state in enumerate(states):
        submitted = board.submit(f"j{number}", {})
        assert submitted
        assert board.tell("r", f"j{number}", submitted, Progress(state))
    return board


def test_jobs_are_counted_by_their_state() -> None:
    states: tuple[State, ...] = ("creating", "running", "failed", "running", "succeeded")
    found = read_queue(queue_of(*states), "main")
    assert found
    assert line(found) == (
        "elastic jobs: 2 running, 1 waiting, 1 failed; fleet on h1: 2 of 4 slots taken"
    )
    assert to_json(found) == {
        "queue": "main", "fleet": "h1", "slots": 4, "taken": 2,
        "jobs": {"creating": 1, "running": 2, "failed": 1, "succeeded": 1},
    }  # fmt: skip


def test_jobs_that_nobody_runs_and_a_queue_without_any() -> None:
    board = queue_of("creating", "succeeded")
    board.resign("r")
    found = read_queue(board, "night")
    assert found
    assert line(found).startswith("elastic jobs of queue night: 1 waiting; nobody runs jobs now")
    assert to_json(found)["fleet"] is None
    board = queue_of("succeeded", "failed")
    board.resign("r")
    assert not read_queue(board, "main"), "all of it is over: nothing to show"
