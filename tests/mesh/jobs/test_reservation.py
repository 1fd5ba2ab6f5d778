"""A reservation of slots while Redis is away."""

from __future__ import annotations

from typing import NoReturn

import pytest

from edl.coordinator.job_queue import QueueBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.mesh.jobs.queue_backend import hold_slots
from edl.runtime.errors import RedisUnavailable
from edl.runtime.lifecycle import Stop


def away(*_: object) -> NoReturn:
    raise RedisUnavailable("Redis does not answer")


def reserve(queue: QueueBoard, stop: Stop) -> list[str]:
    assert queue.lead("r-1", {"slots": 2}, 60.0)
    said: list[str] = []
    hold_slots(queue, "web", 1, None, stop, said.append)
    return said


def test_ctrl_c_ends_a_reservation_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue, stop = QueueBoard(MemoryStore()), Stop()
    monkeypatch.setattr(queue, "unreserve", away)
    stop.request()
    assert reserve(queue, stop)
    assert "Redis does not answer" in caplog.text


def test_slots_are_not_given_back_before_the_reservation_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, stop = QueueBoard(MemoryStore()), Stop()
    monkeypatch.setattr(queue, "unreserve", away)
    assert queue.lead("r-1", {"slots": 2, "kept": {"web": [0]}}, 60.0)
    said: list[str] = []

    def stop_when_free(text: str) -> None:
        said.append(text)
        stop.request()

    hold_slots(queue, "web", 1, None, stop, stop_when_free)
    assert len(said) == 2
    assert said[1] == "given back within 5 s"


def test_an_error_is_not_replaced_by_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: float) -> NoReturn:
        raise ZeroDivisionError

    queue, stop = QueueBoard(MemoryStore()), Stop()
    monkeypatch.setattr(queue, "unreserve", away)
    monkeypatch.setattr(stop, "wait", broken)
    with pytest.raises(ZeroDivisionError):
        reserve(queue, stop)
