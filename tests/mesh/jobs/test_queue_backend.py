"""Jobs of a queue in Redis, as the commands see them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edl.coordinator.job_queue import JobProgress, QueueBoard, QueuedJob
from edl.coordinator.store.memory_store import MemoryStore
from edl.coordinator.store.records import Leads
from edl.mesh.jobs import backend
from edl.mesh.jobs.backend import AWAY_S, wait_for_end
from edl.mesh.jobs.queue_backend import QueueBackend
from edl.runtime.errors import RedisUnavailable
from edl.tests.stores import FaultyStore, of_queue


def test_events_are_the_latest_or_all() -> None:
    board = QueueBoard(MemoryStore())
    for number in range(3):
        board.add_event({"number": number})
    backend = QueueBackend(board)
    for last, numbers in ((1, [2]), (2, [1, 2]), (5, [0, 1, 2]), (0, [0, 1, 2])):
        assert [one.body["number"] for one in backend.events(last)] == numbers


def submitted() -> tuple[FaultyStore, QueueBoard, QueuedJob, Leads]:
    store = FaultyStore()
    board = QueueBoard(store)
    assert board.submit("a", {}) == 1
    assert board.lead("r", {}, 60.0)
    return store, board, board.jobs()[0], of_queue(board, "r")


def test_logs_are_followed_through_an_outage_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    (store, board, job, fence), passed_s = submitted(), [0.0]
    assert board.append_log(fence, "a", ["one"])

    def recover() -> None:
        store.set_available(True)
        assert board.append_log(fence, "a", ["two"])
        assert board.write_progress(fence, "a", 1, JobProgress("succeeded"))

    pauses = iter([lambda: store.set_available(False), recover])
    clock = SimpleNamespace(monotonic=lambda: passed_s[0], sleep=lambda _: next(pauses)())
    monkeypatch.setattr(backend, "time", clock)
    assert list(QueueBackend(board).log_lines(job, follow=True)) == ["one", "two"]
    assert not list(pauses)

    store.set_available(False)
    clock.sleep = lambda _: passed_s.append(passed_s.pop() + AWAY_S)
    with pytest.raises(RedisUnavailable):
        list(QueueBackend(board).log_lines(job, follow=True))
    assert passed_s[0] > AWAY_S


def test_the_end_of_a_job_is_waited_for_through_an_outage_of_redis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (store, board, job, fence), passed_s = submitted(), [0.0]

    def recover(_: float) -> None:
        passed_s[0] += AWAY_S / 2
        if passed_s[0] >= 2 * AWAY_S:
            store.set_available(True)
            board.write_progress(fence, "a", 1, JobProgress("succeeded"))

    clock = SimpleNamespace(monotonic=lambda: passed_s[0], sleep=recover)
    monkeypatch.setattr(backend, "time", clock)
    store.set_available(False)
    with pytest.raises(RedisUnavailable):
        wait_for_end(QueueBackend(board), job, 10 * AWAY_S)
    passed_s[0] = AWAY_S
    store.set_available(False)
    assert wait_for_end(QueueBackend(board), job, 10 * AWAY_S).state == "succeeded"
    assert board.submit("a", {}) == 2
    assert not QueueBackend(board).stop(job), "that is another job"
