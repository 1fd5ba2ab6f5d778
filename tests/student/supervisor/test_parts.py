"""The parts of a node's supervisor: its place at the job board, checkpoints, what launchers say."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from edl.coordinator.jobs import Generation, GenerationRecord, JobBoard, NodeEndpoints, NodeInfo
from edl.coordinator.jobs.schema import KEEP_S
from edl.coordinator.store.memory_store import MemoryStore
from edl.runtime.errors import (
    AddressInUse,
    CheckpointUnavailable,
    GenerationSuperseded,
    RedisUnavailable,
    UsageError,
    WireError,
)
from edl.runtime.lifecycle import Stop
from edl.runtime.logs import FORMAT_VARIABLE
from edl.scheduler.students.failures import RankFailure, hung
from edl.scheduler.students.saving import CheckpointEntry, CheckpointHistory
from edl.scheduler.students.world import RecallWorld, World
from edl.student import evaluate, link
from edl.student.checkpoint import Checkpoint, Repository, SnapshotWriter
from edl.student.checkpoint.repository import HistoryFence
from edl.student.checkpoint.storage import unique_name_of
from edl.student.frameworks.groups import SingleRankGroup
from edl.student.launch import LOOPBACK, free_endpoints, nodes_of, own_address, read_launcher
from edl.student.link import ShardServer
from edl.student.messages import EXIT_AGAIN, Ask, Left, Order, Progress, Ready
from edl.student.rank import reporting
from edl.student.rank.learner import CompletedStep, TrainingPosition
from edl.student.rank.loop import Loop
from edl.student.settings import TrainSettings
from edl.student.show.displays import Plain
from edl.student.show.status import TrainingStatus
from edl.student.supervisor import checkpoints, workers
from edl.student.supervisor.agent import NodeDependencies, Supervisor
from edl.student.supervisor.checkpoints import (
    CheckpointManager,
    CheckpointVerifier,
    FinalSnapshotWriter,
    NewestCheckpoint,
)
from edl.student.supervisor.rendezvous import RendezvousSession
from edl.student.supervisor.ui import NodeReporter, left_s
from edl.student.supervisor.workers import RankProcess
from edl.tests.stores import FaultyStore, of_job
from edl.tests.student.checkpoint.history import contents
from edl.tests.student.checkpoint.samples import GatedRepository
from edl.tests.waiting import DEADLINE_S, wait_until

JOB = "job"
STAND_IN = "edl.tests.student.supervisor.stand_in"

# --- a node at the job board

OVER = {"kind": "finished", "step": 9}
NO_NODES = Generation(World(1, ()), ()).to_json()


class VirtualBoard(JobBoard):
    """A job board whose time passes, and whose memory is lost, when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1e9
        self.memory = FaultyStore(lambda: self.now_s)
        super().__init__(self.memory)

    def expire_leases(self) -> None:
        self.now_s += 60.0

    def names(self) -> list[str]:
        return [node.node_id for node in self.nodes(JOB)]


@pytest.fixture
def board() -> VirtualBoard:
    """Node a leads a job in its second generation."""
    board = VirtualBoard()
    board.join(JOB, "a", {}, 3600.0)
    assert board.lead(JOB, "a", 3600.0)
    for number in (1, 2):
        assert board.publish(JOB, of_job(board, JOB, "a"), number, NO_NODES)
    return board


@pytest.fixture
def seat(board: VirtualBoard) -> Iterator[RendezvousSession]:
    """Node b takes part; by the real clock it beats every 10 ms."""
    seat = RendezvousSession(board, JOB, "b", lambda view: None, ttl_s=0.05, tick_s=0.005)
    seat.start()
    yield seat
    seat.stop()


def test_node_with_expired_lease_rejoins_and_hears_the_end(
    board: VirtualBoard, seat: RendezvousSession
) -> None:
    assert board.names() == ["a", "b"]
    assert board.finish(JOB, of_job(board, JOB, "a"), 2, OVER)
    board.leave(JOB, "a")
    board.expire_leases()
    wait_until(lambda: seat.view.outcome == OVER and board.names() == ["b"])


def test_a_node_with_invalid_facts_gets_no_ranks_and_is_logged_once(
    board: VirtualBoard, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if its facts change; a node that has left is forgotten."""
    session = RendezvousSession(board, JOB, "b", lambda view: None)
    for logged in (1, 2):
        for endpoints in (3, None):
            board.join(JOB, "odd", {"endpoints": endpoints}, 3600.0)
            assert session.read_board().facts["odd"].leaving
        assert caplog.text.count("node odd gets no ranks: ") == logged
        board.leave(JOB, "odd")
        session.read_board()


def test_the_supervisor_does_not_wait_for_a_board_that_hangs(
    board: VirtualBoard, seat: RendezvousSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are sent in the order in which they came; the last one before the node leaves."""
    answers = threading.Event()

    def add_event(job: str, event: dict[str, Any]) -> str:
        assert answers.wait(DEADLINE_S)
        return JobBoard.add_event(board, job, event)

    monkeypatch.setattr(board, "add_event", add_event)
    adding = threading.Thread(target=seat.add_event, args=({"kind": "joined"},))
    adding.start()
    adding.join(DEADLINE_S / 4)
    assert not adding.is_alive()
    answers.set()
    seat.add_event({"kind": "left"})
    seat.stop()
    assert [one.body["kind"] for one in board.events(JOB)] == ["joined", "left"]


def test_nodes_of_other_versions_read_recalls_and_generations() -> None:
    recall = RecallWorld(3, True, "rank 1 does not come")
    for told in (recall, replace(recall, hung=(1,))):
        written = json.loads(json.dumps(NodeInfo(recall=told).to_json()))
        assert ("hung" in written["recall"]) == bool(told.hung), "older ones know no such field"
        written["recall"]["of a newer version"] = 1
        assert NodeInfo.from_json(written).recall == told
    failure = RankFailure(3, "a", 1, "hang", 3, 1, (7, 8), "an error", True, 2)
    written = json.loads(json.dumps(NodeInfo(failures=(failure,)).to_json()))
    written["failures"][0]["of a newer version"] = 1
    assert NodeInfo.from_json(written).failures == (failure,)
    body = {name: one for name, one in NO_NODES.items() if name != "data_order"}
    assert Generation.from_record(GenerationRecord(1, body, 0)).world.data_order == {}
    del body["barred"]
    with pytest.raises(WireError, match=r"generation 1 .* has no barred"):
        Generation.from_record(GenerationRecord(1, body, 0))


def test_what_other_nodes_tell_steers_no_terminal() -> None:
    lines: list[str] = []
    teller = NodeReporter(Plain(lines.append))
    teller.leader_waits("waits for \x1b[2Jb")
    world = replace(World(2, ("a",), None, ""), reason="\x1b[2J")
    teller.generation(Generation(world, (NodeEndpoints("a", ("h:1",)),)), has_this_node=True)
    teller.waiting("the checkpoint of step 5: \x1b[2J")
    status = TrainingStatus()
    status.progress(0, Progress(1, waiting_for="soft labels: \x1b[2J"), 0.0)
    lines.append(status.waiting)
    assert lines[0] == r"waits for \x1b[2Jb"
    assert lines[-1] == r"rank 0: soft labels: \x1b[2J"
    assert "\x1b" not in "".join(lines)


def test_log_records_of_ranks_stay_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    record = '{"time": "2026-01-01T00:00:00", "student": "job/1", "message": "read"}'
    for log_format in ("json", "text"):
        monkeypatch.setenv(FORMAT_VARIABLE, log_format)
        for line in (record, "step 3"):
            NodeReporter(Plain(lines.append)).line(1, line)
    assert capsys.readouterr().err.splitlines() == [record]
    assert lines == ["[1] step 3", f"[1] {record}", "[1] step 3"]


def test_an_estimate_of_steps_that_was_exceeded_says_nothing_of_the_time_left() -> None:
    """Epochs may be longer than the first one: the job would count as near its end from then on."""
    found: Any = Mock(ready=Ready(4, steps=10), ready_s=100.0, at_s=106.0)
    for step, expected in ((4, None), (7, 6.0), (10, 0.0), (11, None)):
        found.progress = Progress(step)
        assert left_s(found) == expected
    found.ready = Ready(4)
    assert left_s(found) is None


def test_an_evaluation_that_takes_longer_than_a_step_may_is_no_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, hang_s = [100.0], 60.0
    virtual = SimpleNamespace(monotonic=lambda: clock[0], perf_counter=lambda: clock[0])
    for module in (evaluate, reporting, workers):
        monkeypatch.setattr(module, "time", virtual)
    order = Order(TrainSettings("/job.py", JOB, epochs=1))
    rank = RankProcess(order, Mock(), Mock(), Ready(), at_s=100.0, heard_s=100.0)

    def metric(outputs: Any, labels: Any) -> float:
        clock[0] += 40.0
        assert not hung([rank.liveness()], hang_s, clock[0])
        return 0.5

    job, link, saver, prefetcher = (Mock() for _ in range(4))
    job.metrics.return_value = {"score": metric}

    def feed(part: str) -> Iterator[Any]:
        for _ in range(3):  # its start takes longer than a step may, too
            clock[0] += 40.0
            loop.report_wait()
            assert not hung([rank.liveness()], hang_s, clock[0])
        yield from [(np.ones((2, 2)), np.ones(2))] * 3

    job.feed.side_effect = feed
    job.framework.tensor = lambda leaf: leaf
    job.framework.evaluating = job.job_errors = saver.forward = MagicMock()
    link.send.side_effect = lambda message: workers._record(rank, message)  # noqa: SLF001 - no process
    saver.learner.group = SingleRankGroup()
    prefetcher.stats.return_value = None
    evaluation = evaluate.RankEvaluation(job, order.settings, saver)
    position = TrainingPosition()
    reporter = reporting.RankReporter(order, link, saver, evaluation, prefetcher, position, {})
    loop = Loop(saver.learner, prefetcher, Mock(), reporter, Mock(), Mock())
    reporter.step_done(CompletedStep(1, 0, [], 4, 4, {}, 0.1, 0.0))
    assert reporter.epoch_done()
    assert not hung([rank.liveness()], hang_s, clock[0])
    assert (rank.waiting_for, rank.at_s, len(rank.rates)) == ("", clock[0], 1)
    assert rank.progress is not None
    assert rank.progress.metrics == {"score": 0.5}
    assert hung([rank.liveness()], hang_s, clock[0] + hang_s) == (0,)


def test_a_rank_in_a_long_step_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank of its node has lost a rank of another node."""
    clock, orders = (
        [100.0],
        [Order(TrainSettings("/job.py", JOB, epochs=1), rank=n) for n in (0, 1)],
    )
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    ranks = [
        RankProcess(order, Mock(), Mock(), Ready(), at_s=99.0, heard_s=99.0) for order in orders
    ]
    busy, adrift = ranks
    adrift.code, adrift.last = EXIT_AGAIN, Left(5, False, "a rank is gone")
    group: Any = Mock(ranks=ranks, running=[busy], shard_server=Mock(waiting=""))
    group.receive.side_effect = [[(adrift, EXIT_AGAIN)], [], []]
    run = workers.WorkerRun(group, 0, Mock())
    assert run.poll(0.0) is None
    clock[0] += 30.0
    assert run.poll(0.0) is None
    group.kill.assert_not_called()
    busy.waiting_for, busy.heard_s = "the other ranks", clock[0]
    assert run.poll(0.0) is None
    group.kill.assert_called_once_with("peers", [0])


# --- what ranks ask


def test_a_question_whose_answer_was_lost_gets_the_same_shard(
    board: VirtualBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.fill(JOB, 2, 0, [(0, 4), (4, 8)])
    given: list[Any] = []

    def lossy(*asked: Any) -> Any:
        given.append(JobBoard.lease(board, *asked))
        if len(given) == 1:
            raise RedisUnavailable("no answer in time")
        return given[-1]

    monkeypatch.setattr(link, "_RETRY_S", 0.01)
    monkeypatch.setattr(board, "lease", lossy, raising=False)
    desk = ShardServer(board, JOB, 2, local=False)
    asks = [Ask(number, "lease", 0) for number in (1, 2)]
    assert [desk.answer(0, ask, lambda: True) for ask in asks] == [(0, 4), (4, 8)]
    assert len(given) == 3
    desk.close()
    with pytest.raises(GenerationSuperseded):
        desk.answer(0, asks[0], lambda: True)


def test_the_shards_of_a_node_alone_do_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(MemoryStore.__init__, "__defaults__", (lambda: now_s[0], "memory://"))
    desk = ShardServer(Mock(), JOB, 1, local=True)
    desk.answer(0, Ask(1, "fill", 0, shards=((0, 4), (4, 8))), lambda: True)
    leased = []
    for number in (2, 3):
        leased.append(desk.answer(0, Ask(number, "lease", 0), lambda: True))
        now_s[0] += 10 * KEEP_S
    assert leased == [(0, 4), (4, 8)]


# --- checkpoints and snapshots


def write_snapshot(keeping: CheckpointManager, step: int) -> None:
    with SnapshotWriter(keeping.keys) as writer:
        writer.write(contents(step))


def newest(judge: CheckpointVerifier, generation: int) -> int:
    found: list[NewestCheckpoint] = []

    def has_found() -> bool:
        found.extend(filter(None, [judge.newest(generation, CheckpointHistory())]))
        return bool(found)

    wait_until(has_found)
    return found[0].entry.step if found[0].entry else 0


def test_a_checkpoint_that_spoils_after_it_was_verified_is_not_used_again(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path))
    assert newest(CheckpointVerifier(repository), 0) == 0
    for step in (40, 50):
        last = repository.save(contents(step))
    judge = CheckpointVerifier(Repository(str(tmp_path)), DEADLINE_S)
    assert (newest(judge, 1), newest(judge, 1)) == (50, 50)
    file = Path(last.location) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert newest(judge, 2) == 40


def test_a_long_verification_is_not_waited_for(tmp_path: Path) -> None:
    Repository(str(tmp_path)).save(contents(7))
    gated = GatedRepository(str(tmp_path))
    judge = CheckpointVerifier(gated, patience_s=0.01)
    assert judge.newest(1, CheckpointHistory()) is None
    wait_until(lambda: gated.verified)
    assert judge.newest(2, CheckpointHistory()) is None, "what is read is of generation 1"
    gated.gate.set()
    assert newest(judge, 2) == 7


def steps(place: Path | str) -> list[int]:
    return [one.step for one in Repository(str(place)).list()]


def published(board: JobBoard, world: World) -> Generation:
    """A generation of the nodes of `world`, of which the first leads."""
    node = world.nodes[0]
    if world.number == 1:
        board.join(JOB, node, {}, 3600.0)
        assert board.lead(JOB, node, 3600.0)
    places = tuple(NodeEndpoints(one, ("127.0.0.1:1",)) for one in world.nodes)
    generation = Generation(world, places)
    assert board.publish(JOB, of_job(board, JOB, node), world.number, generation.to_json())
    return generation


def test_a_hung_disk_keeps_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[GatedRepository] = []

    def repository(url: str, keep: int) -> GatedRepository:
        made.append(GatedRepository(url, keep))
        return made[-1]

    monkeypatch.setattr(checkpoints, "_VOID_S", 0.05)
    monkeypatch.setattr(checkpoints, "Repository", repository)
    board = JobBoard(FaultyStore())
    keeping = CheckpointManager(str(tmp_path), 3, board, JOB)
    blocked = made[-1]  # the first persister's
    fds = [int(key.rpartition("-")[2]) for key in keeping.keys]
    keeping.begin(published(board, World(1, ("a",))), writes=False)
    write_snapshot(keeping, 9)
    keeping.persister.wake()
    wait_until(lambda: blocked.began)
    keeping.begin(published(board, World(2, ("a",), CheckpointEntry("step-5", 5))), writes=False)
    try:
        assert keeping.snapshot == -1
        for fd in fds:
            assert "edl-snapshot" in os.readlink(f"/proc/self/fd/{fd}")
        made[-1].gate.set()
        write_snapshot(keeping, 6)
        keeping.persister.wake()
        wait_until(lambda: keeping.persister.on_disk)
    finally:
        blocked.gate.set()
        wait_until(lambda: steps(tmp_path) == [6, 9])
        keeping.close()
        wait_until(lambda: not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds))
    for one in Repository(str(tmp_path)).list():
        Repository(str(tmp_path)).verify(one)
        assert one.eligible == (one.step == 6), "generation 1 was over when it had written step 9"


def test_a_slow_place_is_searched_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor would search every 50 ms while it waits for a checkpoint."""
    find, clock = Repository.find, [100.0]

    def find_slowly(self: Repository, name: str) -> Checkpoint | None:
        clock[0] += 0.1
        return find(self, name)

    monkeypatch.setattr(Repository, "find", find_slowly)
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    board, origin = JobBoard(FaultyStore()), CheckpointEntry(unique_name_of(5, 1), 5)
    with closing(CheckpointManager(str(tmp_path), 3, board, JOB)) as keeping:
        keeping.find(origin, CheckpointHistory())
        clock[0] += 0.9
        assert not keeping.search_due
        clock[0] += 0.2
        assert keeping.search_due
        keeping.find(origin, CheckpointHistory())
        keeping.begin(published(board, World(1, ("a",), origin)), writes=False)
        assert keeping.search_due, "a generation does not begin with a pause"


def test_a_node_that_leaves_survives_an_outage_of_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the checkpoint of another node, and cannot see it for a moment."""
    board = JobBoard(FaultyStore())
    refused = Mock(side_effect=CheckpointUnavailable("no answer"))
    monkeypatch.setattr(checkpoints, "_MOST_PAUSE_S", 0.0)
    with closing(CheckpointManager(str(tmp_path), 3, board, JOB)) as keeping:
        keeping.begin(published(board, World(1, ("a",))), writes=False)
        write_snapshot(keeping, 9)
        last = FinalSnapshotWriter(keeping, 60.0)
        with monkeypatch.context() as outage:
            outage.setattr(Repository, "list", refused)
            assert not last.may_leave(writer_is_there=True, follows_generations=True)
        assert refused.called
        repository = Repository(str(tmp_path))
        fence = HistoryFence(board, JOB, 1, "")
        repository.join(repository.write(contents(9), fence), fence)
        assert last.may_leave(writer_is_there=True, follows_generations=True)
        assert not last.is_writing


def test_nodes_note_that_what_they_begin_with_has_joined_the_history(tmp_path: Path) -> None:
    """It could not when it was saved: the generation began with it all the same."""
    board = JobBoard(FaultyStore())
    published(board, World(1, ("a",)))
    repository = Repository(str(tmp_path))
    written = repository.write(contents(5), HistoryFence(board, JOB, 1, ""))
    assert repository.newest_valid() is None
    with closing(CheckpointManager(str(tmp_path), 3, board, JOB)) as keeping:
        origin = replace(written.entry, sequence=1)
        keeping.begin(published(board, World(2, ("a",), origin)), writes=False)
        nothing = CheckpointHistory()
        with pytest.raises(UsageError, match=f"begins with {written.digest[:12]}, not with 00"):
            keeping.find(replace(origin, digest="0" * 64), nothing)
        unwritten = replace(origin, digest="")
        assert keeping.find(unwritten, nothing) is None, "it has not joined the history"
        assert keeping.find(replace(unwritten, name=unique_name_of(5, 1)), nothing) is None
        assert keeping.find(origin, nothing) is not None
        assert keeping.find(unwritten, nothing) is not None, "joined, as its folder says"
        with pytest.raises(UsageError, match=", not with 00"):
            keeping.find(unwritten, CheckpointHistory(replace(origin, digest="0" * 64)))
    newest = repository.newest_valid()
    assert newest is not None
    assert (newest.name, newest.sequence) == (origin.name, 1)


def supervisor_in(folder: Path, board: JobBoard) -> Supervisor:
    """Node a; its checkpoints are in `folder / "saved"`."""
    (folder / "job.json").write_text("{}")
    spec, place = str(folder / "job.json"), str(folder / "saved")
    settings = TrainSettings(spec, JOB, (1, 2), coordinator="redis://x", epochs=1, checkpoint=place)
    teller, means = NodeReporter(Plain(lambda line: None)), NodeDependencies(STAND_IN)
    return Supervisor(settings, board, "a", LOOPBACK, teller, means)


@pytest.mark.system
@pytest.mark.parametrize(
    ("restored", "keeper", "offered", "saved"), [(80, "", -1, []), (100, "a", 100, [100])]
)
def test_a_node_outside_the_generation_offers_or_writes_its_snapshot(
    tmp_path: Path, restored: int, keeper: str, offered: int, saved: list[int]
) -> None:
    """A newer snapshot than the generation begins with is void; the keeper writes its own."""
    board = JobBoard(FaultyStore())
    supervisor = supervisor_in(tmp_path, board)
    write_snapshot(supervisor._checkpoints, 100)  # noqa: SLF001 - else a rank has to train
    for number in (1, 2, 3):
        origin = CheckpointEntry(unique_name_of(restored, number), restored)
        published(board, World(number, ("b",), origin, keeper))
    stop = Stop()
    running = threading.Thread(target=supervisor.run, args=(stop,))
    running.start()

    def facts() -> dict[str, Any]:
        return next((dict(one.facts) for one in board.nodes(JOB) if one.node_id == "a"), {})

    try:
        wait_until(lambda: facts().get("generation") == 3 and steps(tmp_path / "saved") == saved)
        assert facts()["snapshot"] == offered
    finally:
        stop.request()
        running.join(DEADLINE_S)
    assert not running.is_alive()


@pytest.mark.system
@pytest.mark.parametrize(
    ("origin", "data_order", "says"),
    [
        ("0" * 64, {}, "not the one that the job goes on from"),
        ("", {"seed": 7, "rows": 9}, "seed is 0 here and 7 in generation 1"),
    ],
    ids=["another checkpoint of its name", "another order of the data"],
)
def test_a_node_refuses_a_generation_that_it_cannot_train(
    tmp_path: Path, origin: str, data_order: dict[str, Any], says: str
) -> None:
    board = JobBoard(FaultyStore())
    saved = Repository(str(tmp_path / "saved")).save(contents(5)).entry
    begun = World(1, ("b", "a"), replace(saved, digest=origin or saved.digest))
    published(board, replace(begun, data_order=data_order))
    with pytest.raises(UsageError, match=says):
        supervisor_in(tmp_path, board).run(Stop())
    assert [one.node_id for one in board.nodes(JOB)] == ["b"]


@pytest.mark.parametrize(("usage", "gave_up"), [(False, False), (True, False), (False, True)])
def test_a_failure_that_ends_the_command_is_not_told_before(usage: bool, gave_up: bool) -> None:
    lines: list[str] = []
    failure = RankFailure(1, "a", 0, step=5, error="no such option", usage=usage, gave_up=gave_up)
    NodeReporter(Plain(lines.append)).failed(failure)
    expected = "rank 0 on node a crashed on step 5 of epoch 0: no such option"
    assert lines == ([] if usage or gave_up else [expected])


# --- what launchers say

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
PADDLE = {"PADDLE_TRAINER_ID": "1"}
SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3"}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environment", "number", "count", "cards"),
    [
        ({}, None, None, ""),
        (TORCHRUN, 5, 16, "1"),
        (TORCHRUN | {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 5, 16, "5"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, 5, 16, ""),
        (PADDLE | {"PADDLE_TRAINERS_NUM": "2"}, 1, 2, ""),
        (PADDLE | {"PADDLE_LOCAL_RANK": "1", "PADDLE_LOCAL_SIZE": "2"}, 1, None, "1"),
        (SLURM | {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 4, ""),
        (SLURM | {"SLURM_NTASKS_PER_NODE": "4"}, 3, None, "3"),
        (MPICH, 2, 4, "0"),
    ],
)
def test_launchers_name_rank_world_and_card(
    environment: dict[str, str], number: int | None, count: int | None, cards: str
) -> None:
    start = read_launcher(environment, "machine")
    name = "machine" if number is None else f"machine-{number}"
    assert (start.name, start.number, start.count) == (name, number, count)
    assert (start.host, start.gpus) == ("", cards)


def test_an_indexed_job_of_kubernetes() -> None:
    variables = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "digits-3-x7k2p", "POD_IP": "10.1.2.3"}
    start = read_launcher(variables, "node")
    assert (start.name, start.number, start.host) == ("digits-3-x7k2p-3", 3, "10.1.2.3")


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [("", {}, (1, 1)), ("", TORCHRUN, (16, 16)), ("2:8", TORCHRUN, (2, 8)), ("3", {}, (3, 3))],
)
def test_node_numbers(text: str, environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert nodes_of(text, read_launcher(environment, "h")) == expected


def test_numbers_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(UsageError, match="RANK='one'"):
        read_launcher({"RANK": "one"}, "h")
    for wrong in ("a", "1:b", ":", "1:2:3"):
        with pytest.raises(UsageError, match="MIN:MAX"):
            nodes_of(wrong, read_launcher({}, "h"))


def test_ids_are_new_with_each_start_and_can_stand_in_a_key() -> None:
    start = read_launcher({"HOSTNAME": "böse maschine/1"}, "")
    first, second = start.node_id(), start.node_id()
    assert first != second
    assert first.startswith("b-se-maschine-1-")


def test_the_address_is_the_one_on_the_way_to_the_coordinator() -> None:
    for url in (None, "redis://127.0.0.1:6379", "unix:///run/redis.sock"):
        assert own_address(url) == LOOPBACK
    with pytest.raises(UsageError, match="--advertise"):
        free_endpoints("203.0.113.7", 1)


def test_ports_of_ranks_are_none_that_a_connection_may_take() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    endpoints = free_endpoints("127.0.0.1", 50)
    ports = {int(endpoint.rpartition(":")[2]) for endpoint in endpoints}
    assert len(ports) == 50
    assert not ports & {*range(low, high + 1)}


def test_it_is_an_error_if_too_few_ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("edl.student.launch._rank_ports", lambda _: [port])
        with pytest.raises(AddressInUse, match="0 ports are free, 1 are needed; end programs"):
            free_endpoints(LOOPBACK, 1)
