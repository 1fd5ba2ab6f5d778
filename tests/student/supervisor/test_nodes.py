"""Nodes of a job with stand-in ranks: whatever fails, the job ends as it should."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from edl.coordinator.jobs import Facts, Generation, JobBoard, NodeInfo
from edl.runtime.errors import (
    CheckpointUnavailable,
    EdlError,
    NoTeacherAvailable,
    RedisUnavailable,
    UsageError,
)
from edl.runtime.lifecycle import Stop
from edl.student.checkpoint import Checkpoint, Repository
from edl.student.checkpoint.checkpoint import Provenance
from edl.student.dry_run import plan
from edl.student.messages import Ask, FromRank, Order, Progress
from edl.student.settings import TrainSettings
from edl.student.show.displays import Plain
from edl.student.supervisor.agent import NodeDependencies, NodeOutcome, Supervisor
from edl.student.supervisor.checkpoints import FinalSnapshotWriter
from edl.student.supervisor.ui import NodeReporter
from edl.student.supervisor.workers import RunResult, WorkerGroup, WorkerRun
from edl.tests.stores import FaultyStore, memory
from edl.tests.student.checkpoint.samples import newest_step
from edl.tests.student.rank.world import settings as rank_settings
from edl.tests.student.supervisor.stand_in import pid_file
from edl.tests.waiting import DEADLINE_S, wait_until

STAND_IN = "edl.tests.student.supervisor.stand_in"
#: Nodes are lost only after longer than a busy machine stalls any.
MEANS = NodeDependencies(STAND_IN, ttl_s=DEADLINE_S, gather_s=0.3, checkpoint_timeout_s=DEADLINE_S)
JOB = "job"
STEPS = 120


@dataclass
class Node:
    name: str
    spec: Path
    stop: Stop
    lines: list[str]
    run: Future[NodeOutcome]

    def outcome(self) -> NodeOutcome:
        return self.run.result(DEADLINE_S)

    def error(self, kind: type[EdlError] = EdlError) -> str:
        """Wait until it ends with an error of this kind; its text."""
        with pytest.raises(kind) as caught:
            self.outcome()
        return str(caught.value)

    def kill(self, rank: int) -> None:
        os.kill(int(pid_file(self.spec, self.name, rank).read_text()), signal.SIGKILL)


@dataclass
class Fleet:
    folder: Path
    job: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    board: JobBoard = field(default_factory=lambda: JobBoard(FaultyStore()))
    means: NodeDependencies = MEANS
    nodes: list[Node] = field(default_factory=list)
    spec: str = "job.json"
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def start(self, *names: str) -> Node:
        """Start nodes; the last one."""
        spec = self.folder / self.spec
        spec.write_text(json.dumps({"steps": STEPS, "step_s": 0.003, **self.job}))
        told = {
            "epochs": 1,
            "total_batch": 4,
            "checkpoint": str(self.folder / "checkpoints"),
            "save_every_steps": 10,
            "hang_s": DEADLINE_S,
            "coordinator": "redis://127.0.0.1:1",  # not dialled: the test gives the board
        }
        settings = TrainSettings(str(spec), JOB, **{**told, **self.settings})
        for name in names:
            lines, stop = list[str](), Stop()
            teller = NodeReporter(Plain(lines.append))
            supervisor = Supervisor(settings, self.board, name, "127.0.0.1", teller, self.means)
            run = self.threads.submit(supervisor.run, stop)
            self.nodes.append(Node(name, spec, stop, lines, run))
        return self.nodes[-1]

    def generation(self) -> int:
        record = self.board.generation(JOB)
        return 0 if record is None else record.number

    def reach(self, step: int) -> None:
        """Wait until a rank has told of `step`."""
        wait_until(lambda: any(int(one.facts["step"]) >= step for one in self.board.reports(JOB)))

    def open_gate(self) -> None:
        """Let ranks go beyond the step that the job file names as `gate`."""
        (self.folder / "job.gate").touch()

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = self.board.events(JOB, count=1000)
        return [dict(one.body) for one in found if one.body["kind"] == kind]

    def end(self) -> None:
        running = wait([node.run for node in self.nodes], DEADLINE_S).not_done
        assert not running, [node.lines for node in self.nodes]

    def finished(self) -> None:
        """All nodes end without an error, the last one as the job finished."""
        outcomes = [node.outcome() for node in self.nodes]
        assert outcomes[-1] == NodeOutcome("finished", STEPS, {"accuracy": 0.5})

    def refuses(self, node: Node, *says: str, by: type[EdlError] = UsageError) -> None:
        """Wait until `node` ends with such an error that has each of `says`, and forget it."""
        error = node.error(by)
        assert all(part in error for part in says), error
        self.nodes.remove(node)

    def worlds(self) -> list[list[str]]:
        return [one["nodes"] for one in self.events("generation")]

    def close(self) -> None:
        self.open_gate()
        for node in self.nodes:
            node.stop.request()
        self.end()
        self.threads.shutdown()


pytestmark = pytest.mark.system

#: Ranks wait there until a test has done what it does to a job that runs.
BEFORE_THE_END = {"gate": 100}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


def test_a_job_without_a_place_for_checkpoints_survives_too(fleet: Fleet) -> None:
    fleet.settings, fleet.job = {"checkpoint": None}, BEFORE_THE_END
    node = fleet.start("a")
    fleet.reach(15)
    node.kill(0)
    fleet.open_gate()
    fleet.finished()
    (_, again) = fleet.events("generation")
    assert "SIGKILL" in again["why"]
    assert again["restored"] > 0


def test_a_job_goes_on_if_the_checkpoint_of_its_generation_is_removed_before_it_starts(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, publish, looks_s = fleet.folder / "checkpoints", JobBoard.publish, itertools.count(0, 60)

    def now_s() -> float:
        """A minute passes between two looks for the checkpoint of generation 2."""
        return time.monotonic() + (next(looks_s) if fleet.generation() == 2 else 0.0)

    clock = SimpleNamespace(monotonic=now_s, sleep=time.sleep)
    monkeypatch.setattr("edl.student.supervisor.agent.time", clock)
    fleet.job = {"gate": 25}
    node = fleet.start("a")
    wait_until(lambda: newest_step(place) == 20)

    def removing(board: JobBoard, *given: Any) -> bool:
        if published := publish(board, *given):
            for folder in place.glob("step-000000000020-*"):
                shutil.rmtree(folder)
        return published

    monkeypatch.setattr(JobBoard, "publish", removing)
    node.kill(0)
    wait_until(lambda: fleet.generation() == 3)
    monkeypatch.setattr(JobBoard, "publish", publish)
    fleet.open_gate()
    fleet.finished()
    assert [one["restored"] for one in fleet.events("generation")] == [0, 20, 20], "from memory"


@pytest.mark.parametrize("search", ["find", "newest_for_next_generation"])
def test_a_node_whose_checkpoints_stay_unreadable_ends(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    fleet.job, fleet.means = {"gate": 25}, replace(MEANS, checkpoint_timeout_s=2.0)
    node = fleet.start("a")
    wait_until(lambda: newest_step(fleet.folder / "checkpoints") == 20)
    monkeypatch.setattr(Repository, search, Mock(side_effect=CheckpointUnavailable("expired key")))
    node.kill(0)
    assert "expired key" in node.error(CheckpointUnavailable)


def test_three_crashes_on_one_step_end_the_job_even_if_no_checkpoint_can_be_written(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room = Mock(side_effect=CheckpointUnavailable("no room"))
    monkeypatch.setattr(FinalSnapshotWriter, "may_leave", no_room)
    fleet.job = {"crash": {"step": 17, "rank": 0, "times": 9}}
    error = fleet.start("a").error()
    assert "step 17 of epoch 0 (positions 64-67): ValueError: as was asked" in error
    assert "3 times" in error
    assert [one["restored"] for one in fleet.events("generation")] == [0, 10, 10]


def test_ranks_that_wait_for_each_other_hang(fleet: Fleet) -> None:
    fleet.settings = {"ranks_per_node": 2, "hang_s": 60.0, "nodes": (2, 2)}
    fleet.job = {"stuck": 17, "second_s": 60.0}
    fleet.start("a", "b")
    for node in fleet.nodes:
        error = node.error()
        assert "hung on step 17 of epoch 0: no step for 60 s or more" in error
        assert "all 4 ranks waited for each other" in error
        assert "that step failed 3 times" in error


def test_a_rank_may_wait_for_labels_while_the_others_wait_for_it(fleet: Fleet) -> None:
    """The reader has a limit for that (`wait_timeout_s`), which may be far above `hang_s`."""
    fleet.settings = {"nodes": (2, 2)}
    fleet.job = {"absent": {"step": 17, "rank": 1, "for_s": 4.0}, "second_s": 200.0}
    fleet.start("a", "b")
    fleet.finished()
    assert len(fleet.events("generation")) == 1, "no node is blamed, and nothing starts again"


def test_a_usage_error_is_not_retried(fleet: Fleet) -> None:
    fleet.job = {"usage": "job.py:3, in model(): no layers"}
    assert fleet.start("a").error(UsageError) == "job.py:3, in model(): no layers"
    assert fleet.generation() == 1


@pytest.mark.parametrize("alone", [False, True], ids=["with another", "alone at first"])
def test_a_node_that_leaves_before_its_last_save_joined_is_not_waited_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """The next world began with that save, and is formed again: it lies on the disk.

    A node that is alone does not wait for others before it writes, and one may come meanwhile.
    """
    write, writes = Repository.write, threading.Event()

    def write_slowly(*args: Any) -> Checkpoint:
        writes.set()
        wait_until(lambda: fleet.generation() >= 2)
        return write(*args)

    class Failing(JobBoard):
        def replace_history(self, job: str, generation: int, known: Facts, history: Facts) -> bool:
            if generation == 2:
                raise RedisUnavailable("timed out")
            return super().replace_history(job, generation, known, history)

    monkeypatch.setattr(Repository, "write", write_slowly)
    fleet.board = Failing(FaultyStore())
    fleet.settings = {"nodes": (1, 1), "save_every_steps": None, "save_overhead": 0.0}
    fleet.job = BEFORE_THE_END
    node = fleet.start("a")
    fleet.reach(12)
    if alone:
        node.stop.request()
        writes.wait(DEADLINE_S)
    fleet.start("b")
    if not alone:
        wait_until(lambda: len(fleet.board.nodes(JOB)) == 2)
        node.stop.request()
    wait_until(lambda: fleet.generation() == 3)
    fleet.open_gate()
    fleet.finished()
    second, third = fleet.events("generation")[1:]
    assert (second["nodes"], third["nodes"]) == (["b"], ["b"])
    assert second["restored"] == third["restored"] >= 12
    assert "node a, which had the checkpoint" in fleet.events("recall")[-1]["why"]


def test_a_place_that_takes_no_checkpoint_is_one_clear_error(fleet: Fleet) -> None:
    fleet.settings = {"checkpoint": str(fleet.folder / "checkpoints" / "deeper")}
    (fleet.folder / "checkpoints").write_text("a file where a folder should be")
    assert "checkpoints" in fleet.start("a").error()


def test_a_node_whose_ranks_fail_twice_is_left_out(fleet: Fleet) -> None:
    fleet.settings = {"nodes": (1, 2), "save_every_steps": 50}
    fleet.means = replace(fleet.means, gather_s=DEADLINE_S)  # until both are there
    fleet.job = {"crash": {"step": 20, "rank": 1, "times": 2}}
    fleet.start("a", "b")
    fleet.end()
    (out,) = [node for node in fleet.nodes if node.run.exception()]  # who came second has rank 1
    assert f"goes on without node {out.name}" in out.error()
    assert f"rank 1 on node {out.name} crashed on step 20" in out.error()
    assert [one["ranks"] for one in fleet.events("generation")] == [2, 2, 1]


def test_a_node_that_the_world_has_no_use_for_waits_in_reserve(fleet: Fleet) -> None:
    """The ranks tell the batch: the settings do not."""
    fleet.job = BEFORE_THE_END | {"batch": 3}
    fleet.settings = {"nodes": (2, 4), "total_batch": None}
    fleet.start("a", "b")
    fleet.reach(1)
    fleet.settings |= {"ranks_per_node": 2}
    c = fleet.start("c")
    reserve = "c in reserve: a step has 3 rows, too few for 4 ranks"
    wait_until(lambda: any(reserve in line for line in c.lines))
    fleet.open_gate()
    fleet.finished()
    assert [one["ranks"] for one in fleet.events("generation")] == [2]


@pytest.mark.parametrize("older", [False, True], ids=["nothing", "older data"])
def test_a_board_that_lost_data_gets_a_new_generation(fleet: Fleet, older: bool) -> None:
    """Also if a node in reserve leads there first, or an earlier run of the job had ended then."""
    fleet.means = replace(MEANS, ttl_s=20.0)  # nodes beat 5 times in that time, and join again
    fleet.settings, fleet.job = {"nodes": (2, 2)}, BEFORE_THE_END
    node, store = fleet.start("a", "b"), memory(fleet.board)
    fleet.reach(1)
    fleet.start("c")
    wait_until(lambda: [one.facts["generation"] for one in fleet.board.nodes(JOB)] == [1, 1, 1])
    past = JobBoard(FaultyStore())
    if older:
        memory(past).restore(store.snapshot())
        for name in ("a", "b"):
            past.resign(JOB, name)
        fence = past.lead(JOB, "c", DEADLINE_S)
        assert fence is not None
        assert past.finish(JOB, fence, 1, {"kind": "failed"})
    node.kill(fleet.worlds()[0].index("b"))
    wait_until(lambda: fleet.generation() == 2)
    fleet.reach(1)
    with store.lock:
        store.restore(memory(past).snapshot())
        assert fleet.board.lead(JOB, "c", DEADLINE_S)
    wait_until(lambda: fleet.generation() == 3)
    fleet.open_gate()
    fleet.finished()
    assert all({*nodes} == {"a", "b"} for nodes in fleet.worlds())


def test_what_a_former_leader_said_hides_nothing_of_the_next_one(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.settings = {"nodes": (2, 2)}
    node, board = fleet.start("a"), fleet.board

    def said() -> str:
        return str(next(one.facts["says"] for one in board.nodes(JOB) if one.node_id == "a"))

    wait_until(lambda: board.nodes(JOB) and said())
    monkeypatch.setattr(Repository, "newest_for_next_generation", searched := Mock())

    def overtaken() -> bool:
        board.resign(JOB, "a")
        return board.lead(JOB, "b", 3600.0) is not None

    wait_until(overtaken)
    facts = NodeInfo(says="b waits for something else", leaving=True).to_json()
    board.join(JOB, "b", facts, 3600.0)
    wait_until(lambda: "b waits for something else" in node.lines)
    assert said() == ""
    board.leave(JOB, "b")
    wait_until(said)
    assert not searched.called, "it waits for a second node, which may take for ever"


def test_of_two_nodes_that_begin_a_job_the_second_is_refused(fleet: Fleet) -> None:
    """The first one waits for a second with its settings."""
    fleet.settings = {"nodes": (2, 2)}
    a = fleet.start("a")
    wait_until(lambda: len(fleet.board.nodes(JOB)) == 1)
    fleet.settings = {"nodes": (2, 2), "seed": 7}
    fleet.refuses(fleet.start("b"), "seed is 7 here and 0 in the job")
    assert a.run.running()
    fleet.settings = {"nodes": (2, 2)}
    fleet.start("c")
    fleet.finished()
    assert fleet.worlds() == [["a", "c"]]
    record = fleet.board.generation(JOB)
    assert record is not None
    world = Generation.from_record(record).world
    assert world.fingerprint == {"seed": 0, "total_batch": 4}, "of the job, for who comes later"
    assert world.data_order == {"seed": 0, "restarts_epoch": False}


@pytest.mark.parametrize(
    ("settings", "job", "says"),
    [
        ({}, {"usage": "--amp float16 needs a GPU"}, "--amp float16 needs a GPU"),
        ({}, {"no_teacher": "no teacher for 600 s"}, "no teacher for 600 s"),
        ({"checkpoint": "memory://elsewhere"}, {}, "at memory://elsewhere: none"),
    ],
    ids=["a mistake that ranks show", "no teacher", "other checkpoints"],
)
def test_a_node_that_fails_in_the_world_that_it_joined_is_refused_alone(
    fleet: Fleet, settings: dict[str, Any], job: dict[str, Any], says: str
) -> None:
    # Far from its end, by the pace of the first steps, however long a world takes to form.
    fleet.settings, fleet.job = {"nodes": (1, 4)}, {"gate": 12, "steps": 10**7}
    fleet.start("a")
    fleet.reach(11)
    fleet.settings, fleet.job, fleet.spec = fleet.settings | settings, job, "other.json"
    # What it waits for comes, except from elsewhere.
    fleet.means = replace(MEANS, checkpoint_timeout_s=2.0 if "checkpoint" in settings else 180.0)
    by = NoTeacherAvailable if "no_teacher" in job else UsageError
    fleet.refuses(fleet.start("b"), says, by=by)
    fleet.open_gate()
    wait_until(lambda: fleet.generation() == 3)
    fleet.reach(14)
    assert fleet.worlds() == [["a"], ["a", "b"], ["a"]]


def left_behind(fleet: Fleet) -> Path:
    """Train some steps and leave; the folder of the checkpoints."""
    fleet.job, place = BEFORE_THE_END, fleet.folder / "checkpoints"
    node = fleet.start("a")
    fleet.reach(12)
    node.stop.request()
    left = node.outcome()
    assert (left.kind, left.step) == ("left", newest_step(place))
    assert left.step >= 12
    fleet.nodes.clear()
    fleet.open_gate()
    return place


def test_a_node_can_be_stopped_while_it_verifies_a_checkpoint(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(fleet)
    verified = threading.Event()
    monkeypatch.setattr(Repository, "verify", lambda *_: verified.wait(2 * DEADLINE_S))
    node = fleet.start("b")
    wait_until(lambda: any("to be verified" in line for line in node.lines))
    node.stop.request()
    assert node.outcome() == NodeOutcome("left")
    verified.set()


def provenance(place: Path) -> Provenance:
    newest = Repository(str(place)).newest_valid()
    assert newest is not None
    return newest.provenance


def test_a_changed_setting_is_refused_on_resume_unless_it_is_accepted(fleet: Fleet) -> None:
    fleet.settings = {"ranks_per_node": 2, "save_every_steps": None, "save_overhead": 0.0}
    place = left_behind(fleet)
    step = newest_step(place)
    assert provenance(place).fingerprint == {"seed": 0, "total_batch": 4}
    fleet.settings = {"total_batch": 12}
    refused = "total_batch is 12 here and 4 in the checkpoint", "--accept-change total_batch"
    fleet.refuses(fleet.start("b"), *refused)
    fleet.settings = {"total_batch": 12, "accept_changes": ("total_batch",)}
    fleet.start("c")
    fleet.finished()
    assert fleet.events("generation")[-1]["restored"] == step
    assert [(one["old"], one["new"]) for one in fleet.events("scaled")] == [(2, 1)]
    told = provenance(place)
    assert told.fingerprint == {"seed": 0, "total_batch": 12}
    assert told.accepted == ({"step": step, "field": "total_batch", "before": 4, "after": 12},)


def test_a_checkpoint_that_has_not_joined_the_history_is_held_against_the_settings(
    fleet: Fleet,
) -> None:
    """As the board was away when it was saved; the job goes on from it."""
    fleet.settings = {"save_every_steps": None, "save_overhead": 0.0}
    (note,) = left_behind(fleet).glob("*/JOINED.json")
    note.unlink()
    memory(fleet.board).clear()
    fleet.settings = {"total_batch": 12}
    fleet.refuses(fleet.start("b"), "total_batch is 12 here and 4 in the checkpoint")


def order_in(folder: Path, **job: Any) -> Order:
    """The order of the only rank of a job."""
    spec = folder / "job.json"
    spec.write_text(json.dumps({"steps": 2} | job))
    settings = TrainSettings(str(spec), "job", epochs=1, total_batch=4)
    return Order(settings, local_rank=1, endpoints=("127.0.0.1:1",))


def test_a_rank_is_heard_while_its_question_waits(tmp_path: Path) -> None:
    may_answer = threading.Event()

    def answer(rank: int, ask: Ask, alive: Callable[[], bool]) -> None:
        may_answer.wait(DEADLINE_S)
        raise ValueError("no answer to that")

    order = order_in(tmp_path, asks=True)
    said = list[FromRank | int]()

    def waits() -> bool:
        said.extend(word for _, word in crew.receive(0.05))
        return any(isinstance(word, Progress) and word.waiting_for for word in said)

    group = WorkerGroup([order], Mock(answer=answer), lambda rank, line: None, STAND_IN)
    with closing(group) as crew:
        wait_until(waits)
        may_answer.set()
        wait_until(lambda: bool(crew.receive(0.05)) and not crew.running)
        assert "SIGKILL" in crew.ranks[0].ending()


def test_a_rank_that_sends_an_invalid_message_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    order = order_in(tmp_path, gate=1, invalid="a word")
    with closing(WorkerGroup([order], Mock(), lambda rank, line: None, STAND_IN)) as workers:
        wait_until(lambda: bool(workers.receive(0.05)) and not workers.running)
        assert "SIGKILL" in workers.ranks[0].ending()
    assert "killing rank 0: a rank sent an invalid message 'saved': step: 'a word'" in caplog.text


@contextmanager
def run_of(order: Order) -> Iterator[WorkerRun]:
    workers = WorkerGroup([order], Mock(waiting=""), lambda rank, line: None, STAND_IN)
    with closing(WorkerRun(workers, 0, lambda rank, message: None)) as run:
        yield run


def test_a_rank_that_hung_because_it_was_suspended_is_reported_as_such(tmp_path: Path) -> None:
    found: list[RunResult] = []

    def ended() -> bool:
        found.extend(filter(None, [run.poll(0.05)]))
        return bool(found)

    with run_of(order_in(tmp_path, gate=1)) as run:
        (rank,) = run.workers.ranks
        wait_until(lambda: ended() or rank.ready is not None)
        rank.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: rank.suspended)
        run.workers.kill("hang", [0])
        wait_until(ended)
    (failure,) = found[0].failures
    assert failure.how == "hang"
    assert failure.error.endswith("it was suspended")


def test_a_rank_does_not_hang_because_its_supervisor_was_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(pauses))
    monkeypatch.setattr("edl.student.supervisor.workers.time", clock)
    order = order_in(tmp_path, step_s=2 * DEADLINE_S)
    with run_of(order) as run:
        (rank,) = run.workers.ranks
        wait_until(lambda: run.poll(0.05) is None and rank.ready is not None)
        pauses.append(10 * order.settings.hang_s)
        run.poll(0.0)
        assert not rank.killed_for
        for _ in range(4 * round(order.settings.hang_s)):
            pauses.append(0.5)
            run.poll(0.0)
        assert [one.killed_for for one in run.workers.ranks] == ["hang"]


def test_the_plan_names_the_rows_of_a_rank_at_both_limits(tmp_path: Path) -> None:
    several = {"coordinator": "redis://127.0.0.1:1", "checkpoint": str(tmp_path)}
    job = rank_settings(epochs=2, nodes=(1, 8), ranks_per_node=2, total_batch=7, **several)
    told = "\n".join(plan(job))
    for part in (
        "96 samples an epoch in 14 steps of 7 rows",
        "with 1 node: 2 ranks of about 4 rows",
        "with 3 nodes: 6 ranks of about 2 rows",
        "more than 3 nodes: further nodes wait in reserve",
    ):
        assert part in told
    assert not list(tmp_path.iterdir())


DISTILS = """
from edl.student import Distill
FRAMEWORK = "paddle"
def model(): raise AssertionError  # the plan fails before
loss = optimizer = feed = lambda *given: None
def distill(): return Distill("s")
"""
UNKNOWN_BATCH = """
from edl.distill_reader import Batched
FRAMEWORK = "paddle"
model = loss = optimizer = lambda *given: None
def feed(split):
    batches = Batched(range(8), 4)
    batches.batch_sampler = [[0, 1], [2]]
    return batches
"""


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (DISTILS, "the job distils: give --redis"),
        (UNKNOWN_BATCH, "no batch size: give --total-batch ROWS"),
    ],
)
def test_a_plan_refuses_what_the_training_refuses(
    write_job: Callable[..., Path], job: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        list(plan(rank_settings(job_file=str(write_job(job)), epochs=1)))
