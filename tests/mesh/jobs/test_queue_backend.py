"""Jobs of a queue in Redis, as the commands see them."""

from __future__ import annotations

from edl.coordinator.job_queue import QueueBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.mesh.jobs.queue_backend import QueueBackend


def test_events_are_the_latest_or_all() -> None:
    board = QueueBoard(MemoryStore())
    for number in range(3):
        board.add_event({"number": number})
    backend = QueueBackend(board)
    for last, numbers in ((1, [2]), (2, [1, 2]), (5, [0, 1, 2]), (0, [0, 1, 2])):
        assert [one.body["number"] for one in backend.events(last)] == numbers
