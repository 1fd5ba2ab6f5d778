"""One contract, two stores: a call that is sent again because its answer was lost has succeeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edl.coordinator import operations
from edl.coordinator.job_queue import QueueBoard
from edl.coordinator.jobs import JobBoard
from edl.coordinator.machines import Deployment, MachineBoard
from edl.coordinator.registry import LogEntry, Registry, StoredContentPlan
from edl.coordinator.store import Store
from edl.coordinator.store.records import Change, Condition
from edl.tests.contracts.conftest import LONG_S, Hold
from edl.tests.stores import of_job, of_service

OLD, NEW = "a" * 64, "b" * 64


def submit(store: Store) -> None:
    assert QueueBoard(store).submit("j", {"x": 1}) == 1
    assert [job.spec for job in QueueBoard(store).jobs()] == [{"x": 1}]


def upgrade(store: Store) -> None:
    registry = Registry(store)
    assert f"to content {NEW}" in operations.upgrade(registry, "s", NEW, "epoch")
    assert registry.content_plan("s").next_content_id == NEW


def withdraw(store: Store) -> None:
    board = MachineBoard(store)
    assert "gives its machines back" in operations.undeploy(board, "s")
    assert [deployment.withdrawn for deployment in board.deployments()] == [True]


def move_plan(store: Store) -> None:
    registry, entry = Registry(store), LogEntry("upgrade", NEW, "")
    assert registry.move_content_plan(
        "s", of_service(registry, "m"), (0, 0), StoredContentPlan(NEW), entry
    )
    assert len(registry.events("s")) == 1


def desire(store: Store) -> None:
    registry, entry = Registry(store), LogEntry("scaled", "s", "")
    assert registry.set_desired("s", of_service(registry, "m"), 3, "why", entry)
    assert len(registry.events("s")) == 1


def publish_and_finish(store: Store) -> None:
    board = JobBoard(store)
    assert board.publish("j", of_job(board, "j", "n"), 1, {})
    assert board.finish("j", of_job(board, "j", "n"), 1, {"kind": "finished"})


@pytest.mark.parametrize("call", [submit, upgrade, withdraw, move_plan, desire, publish_and_finish])
def test_a_call_that_is_sent_twice_succeeds_and_has_one_effect(
    call: Callable[[Store], None], hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store = hold(lambda store: store).one
    teacher = {"incarnation": "1", "address": "h:1", "content_id": OLD}
    Registry(store).register("teachers", "s", "t", teacher, LONG_S)
    Registry(store).lead("s", "m", LONG_S)
    JobBoard(store).lead("j", "n", LONG_S)
    MachineBoard(store).deploy(Deployment("s", "file:///m", OLD))
    commit = store.commit

    def send_twice(conditions: Sequence[Condition], changes: Sequence[Change]) -> Any:
        commit(conditions, changes)
        return commit(conditions, changes)

    monkeypatch.setattr(store, "commit", send_twice)
    call(store)
