"""One contract, two stores: a leader writes only while it leads under the same token."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from edl.coordinator.job_queue import JobProgress, QueueBoard
from edl.coordinator.jobs import JobBoard, open_job_board
from edl.coordinator.machines import Deployment, MachineBoard, MachineOrder
from edl.coordinator.machines.board import fence_of
from edl.coordinator.registry import LogEntry, Registry, Row, StoredContentPlan
from edl.coordinator.store import Store
from edl.coordinator.store.records import (
    Append,
    Condition,
    FieldIs,
    Leads,
    NumberIs,
    Once,
    Put,
    Stamp,
)
from edl.runtime.errors import GenerationSuperseded
from edl.scheduler.students.saving import CheckpointHistory
from edl.student.checkpoint import Checkpoint, Repository
from edl.student.checkpoint.repository import HistoryFence
from edl.tests.contracts.conftest import LONG_S, SHORT_S, Hold, Holds
from edl.tests.student.checkpoint.history import contents
from edl.tests.waiting import DEADLINE_S, wait_until

DEPLOYED = Deployment("s", "s3://bucket/model", "ab" * 32)
LOST = LogEntry("lost", "t", "")


@dataclass(frozen=True)
class LeaderWrite:
    """How to lead, for so long, and what a leader then writes."""

    lead: Callable[[Store, str, float], Leads | None]
    write: Callable[[Store, Leads], bool]
    prepare: Callable[[Store], object] = lambda store: None


def lead_service(store: Store, holder: str, ttl_s: float) -> Leads | None:
    fence = Registry(store).lead("s", holder, ttl_s).fence
    return fence if fence.holder == holder else None


def lead_job(store: Store, holder: str, ttl_s: float) -> Leads | None:
    return JobBoard(store).lead("j", holder, ttl_s)


def lead_placement(store: Store, holder: str, ttl_s: float) -> Leads | None:
    led = MachineBoard(store).lead(holder, ttl_s)
    return fence_of(led) if led.change else None


def lead_queue(store: Store, holder: str, ttl_s: float) -> Leads | None:
    return QueueBoard(store).lead(holder, {}, ttl_s)


def withdraw(store: Store) -> None:
    assert MachineBoard(store).deploy(DEPLOYED.withdrawal)


WRITES = {
    "assignment": LeaderWrite(
        lead_service,
        lambda store, fence: Registry(store).write("s", fence, (0, 0), (1, 1), {"j/0": Row()}),
    ),
    "desired": LeaderWrite(
        lead_service, lambda store, fence: Registry(store).set_desired("s", fence, 3, "why")
    ),
    "plan": LeaderWrite(
        lead_service,
        lambda store, fence: Registry(store).move_content_plan(
            "s", fence, (0, 0), StoredContentPlan("c"), LOST
        ),
    ),
    "generation": LeaderWrite(
        lead_job, lambda store, fence: JobBoard(store).publish("j", fence, 1, {})
    ),
    "outcome": LeaderWrite(
        lead_job, lambda store, fence: JobBoard(store).finish("j", fence, 1, {"kind": "finished"})
    ),
    "order": LeaderWrite(
        lead_placement,
        lambda store, fence: MachineBoard(store).order(fence, {"m": MachineOrder(1)}),
    ),
    "forgotten deployment": LeaderWrite(
        lead_placement, lambda store, fence: MachineBoard(store).forget(fence, "s"), withdraw
    ),
    "progress": LeaderWrite(
        lead_queue,
        lambda store, fence: QueueBoard(store).write_progress(
            fence, "a", 1, JobProgress("running")
        ),
        lambda store: QueueBoard(store).submit("a", {}),
    ),
    "output": LeaderWrite(
        lead_queue,
        lambda store, fence: QueueBoard(store).append_log(fence, "a", ["a line"]),
        lambda store: QueueBoard(store).submit("a", {}),
    ),
}


@pytest.fixture
def stores(hold: Hold) -> Holds[Store]:
    return hold(lambda store: store)


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("successor", ["other", "same"])
def test_a_write_of_an_earlier_leadership_is_refused(
    stores: Holds[Store], kind: str, successor: str
) -> None:
    """It was decided, and sent after another leadership had begun, perhaps of the same leader."""
    case, store = WRITES[kind], stores.one
    case.prepare(store)
    before = case.lead(store, "same", SHORT_S)
    assert before is not None
    stores.pass_s(SHORT_S + 0.01)
    assert not case.write(store, before), "its time is over"
    now = case.lead(stores.another, successor, LONG_S)
    assert now is not None
    assert now.token > before.token
    assert not case.write(store, before)
    assert case.write(store, now)


# --- saves, which carry the number of their generation


def begin(board: JobBoard, leader: str, number: int, newest: Checkpoint | None) -> HistoryFence:
    """Begin a generation with a checkpoint, led for a short time more; the fence of its saves."""
    fence = board.lead("j", leader, LONG_S)
    assert fence is not None
    record = board.generation("j")
    history = CheckpointHistory(None if newest is None else newest.entry).to_json()
    assert board.publish("j", fence, number, {}, (record.history if record else {}, history))
    assert board.lead("j", leader, SHORT_S)
    return HistoryFence(board, "j", number, "" if newest is None else newest.name)


def save(repository: Repository, fence: HistoryFence, step: int) -> Checkpoint | None:
    return repository.join(repository.write(contents(step), fence), fence)


class Interrupted(HistoryFence):
    """Something happens between what a save decides and what it writes."""

    happens: Callable[[], object]

    def replace(self, known: CheckpointHistory, history: CheckpointHistory) -> bool:
        self.happens()
        return super().replace(known, history)


def steps(folder: Path) -> dict[int, bool]:
    """The steps of the checkpoints that are there, and whether they count."""
    return {one.step: one.eligible for one in Repository(str(folder)).list()}


def test_a_save_of_an_earlier_generation_does_not_join_and_prunes_nothing(
    hold: Hold, tmp_path: Path
) -> None:
    boards: Holds[JobBoard] = hold(JobBoard)
    repository = Repository(str(tmp_path), keep=1)
    fence = begin(boards.one, "a", 1, None)
    first = save(repository, fence, 10)
    late = Interrupted(boards.one, "j", 1, fence.after)

    def succeed() -> None:
        boards.pass_s(SHORT_S + 0.01)
        save(Repository(str(tmp_path)), begin(boards.another, "b", 2, first), 15)

    late.happens = succeed
    with pytest.raises(GenerationSuperseded):
        save(repository, late, 20)
    assert steps(tmp_path) == {15: True, 10: True, 20: False}
    record = boards.another.generation("j")
    assert record is not None
    assert record.history["newest"]["step"] == 15
    assert record.history["dropped"] == []


def save_and_stop(url: str, folder: str, stops: str) -> None:
    """A process that saves step 20 of generation 1, keeps no other, and stops itself on the way."""

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    class Stopping(Repository):
        def _remove_old(self, saved: Checkpoint, served: Callable[[], Sequence[str]]) -> None:
            if stops == "prune":
                stop()
            super()._remove_old(saved, served)

    repository = Stopping(folder, keep=1)
    fence = Interrupted(open_job_board(url, DEADLINE_S), "j", 1, repository.list()[0].name)
    fence.happens = stop if stops == "save" else lambda: None
    with contextlib.suppress(GenerationSuperseded):
        save(repository, fence, 20)


@pytest.mark.system
@pytest.mark.parametrize(
    ("stops", "left"),
    [
        ("save", {15: True, 10: True, 20: False}),
        ("prune", {25: True, 20: True}),  # what the save named left the history with it
    ],
)
def test_a_saver_that_was_stopped_changes_nothing_of_its_successor(
    redis: Redis, private_valkey_url: str, tmp_path: Path, stops: str, left: dict[int, bool]
) -> None:
    board = open_job_board(private_valkey_url, DEADLINE_S)
    save(Repository(str(tmp_path)), begin(board, "a", 1, None), 10)
    program = [sys.executable, "-P", "-m", "edl.tests.contracts.test_fencing"]
    saver = subprocess.Popen([*program, private_valkey_url, str(tmp_path), stops])
    try:
        os.waitid(os.P_PID, saver.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        newest = Repository(str(tmp_path)).newest_valid()
        assert newest is not None
        assert newest.step == (10 if stops == "save" else 20)
        wait_until(lambda: board.lead("j", "b", SHORT_S) is not None)
        save(Repository(str(tmp_path)), begin(board, "b", 2, newest), newest.step + 5)
        before = board.generation("j")
        saver.send_signal(signal.SIGCONT)
        assert saver.wait(DEADLINE_S) == 0
        assert board.generation("j") == before
        assert steps(tmp_path) == left
    finally:
        saver.kill()
        saver.wait()
        board.close()


def test_a_token_grows_when_the_store_has_lost_everything(stores: Holds[Store]) -> None:
    before = stores.one.lead("k", "a", LONG_S)
    assert (before.change, stores.one.lead("k", "a", LONG_S).change) == ("first", "kept")
    stores.pass_s(0.01)
    stores.empty()
    after = stores.another.lead("k", "b", LONG_S)
    assert (after.change, after.token > before.token) == ("first", True)
    assert stores.one.commit([Leads("k", "a", before.token)], [Put("d", {"x": 1})]) == 1


def test_a_leader_shows_its_facts_until_its_time_is_over(stores: Holds[Store]) -> None:
    assert stores.one.leader("k") is None
    led = stores.one.lead("k", "a", LONG_S, facts="{}")
    found = stores.another.leader("k")
    assert found is not None
    assert (found.holder, found.token, found.facts) == ("a", led.token, "{}")
    assert 0 < found.expires_in_s < LONG_S + 0.001
    assert stores.one.lead("k", "a", SHORT_S).change == "kept"
    stores.pass_s(SHORT_S + 0.01)
    assert stores.another.leader("k") is None


def test_all_changes_are_made_or_none_and_the_failed_condition_is_named(
    stores: Holds[Store],
) -> None:
    store = stores.one
    append = Append("log", {"text": "é"}, 10, LONG_S)
    first: list[Condition] = [FieldIs("d", "x", ""), NumberIs("d", "n", 0)]
    assert store.commit(first, [Put("d", {"x": "one", "n": 7}), Stamp("d", "at"), append]) == 0
    assert store.commit(first, [Put("d", {"x": "two"}), append]) == 1
    assert store.commit([FieldIs("d", "x", "one"), NumberIs("d", "n", 8)], [append]) == 2
    (found,) = stores.another.read("d")
    assert (found["x"], found["n"]) == ("one", "7")
    assert abs(int(found["at"]) - store.time_ms()) < 60_000
    assert [one.fields for one in stores.another.log("log")] == [{"text": "é"}]
    assert store.commit([], [Put("d", {"x": None, "n": ""})]) == 0
    assert store.read("d", "none") == [{"at": found["at"]}, {}]


def test_a_transaction_whose_answer_was_lost_is_not_made_twice(stores: Holds[Store]) -> None:
    once: list[Condition] = [Once("d", "write-1"), NumberIs("d", "n", 0)]
    append = Append("log", {"text": ""}, 10, LONG_S)
    for _ in range(2):
        assert stores.one.commit(once, [Put("d", {"n": 1}), append]) == 0
    assert len(stores.another.log("log")) == 1
    assert stores.another.commit([Once("d", "write-2"), NumberIs("d", "n", 0)], [append]) == 2


def test_a_name_is_forgotten_when_it_was_not_in_use_for_long(stores: Holds[Store]) -> None:
    stores.one.record_use("names", "old")
    stores.pass_s(SHORT_S)
    stores.one.record_use("names", "new")
    # However slow the machine is, what was used just now is younger than the second limit.
    for name, age_s in (("old", SHORT_S / 2), ("new", LONG_S), ("never", SHORT_S / 2)):
        stores.another.forget("names", name, age_s)
    assert stores.another.used_names("names") == ["new"]


if __name__ == "__main__":
    save_and_stop(*sys.argv[1:])
