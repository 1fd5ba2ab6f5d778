"""Slots of a fleet: their owners, whatever jobs, nodes and reservations do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.coordinator.job_queue import DesiredJobState, JobProgress, QueuedJob, Reservation
from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.mesh.jobs import job_run
from edl.mesh.jobs.job_run import JobRun, TrainingProgress, progress_or_unknown
from edl.mesh.jobs.node_scaler import JobRunnerConfig, NodeScaler, Slots, divide_cores
from edl.mesh.jobs.spec import QueuedJobSpec
from edl.runtime.errors import UsageError
from edl.runtime.supervise import Command
from edl.scheduler.elastic_values import ElasticConfig
from edl.tests.stores import of_job


def asked(**slots: int) -> list[Reservation]:
    return [Reservation(name, count, n, 5.0) for n, (name, count) in enumerate(slots.items())]


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(1, 80))
def test_slots_have_equal_parts_of_the_cores_and_share_none(cores: set[int], slots: int) -> None:
    divided = divide_cores(cores, slots)
    assert len(divided) == slots
    assert {len(part) for part in divided} == {len(cores) // slots}
    shared = set[int]().union(*divided)
    assert len(shared) == slots * (len(cores) // slots)
    assert shared <= cores


def test_free_slots_are_kept_for_the_first_that_asked() -> None:
    slots = Slots(((),) * 4, used={0, 2})
    both = asked(web=1, api=2)
    assert slots.reserve(both) == ["web"]
    assert (slots.reserved, slots.free) == ({"web": [1], "api": [3]}, [])
    assert slots.lacks_slots(both)
    slots.used.discard(2)
    assert slots.reserve(both) == ["api"]
    assert slots.reserved == {"web": [1], "api": [3, 2]}
    assert slots.reserve(both) == [], "said once"
    assert not slots.lacks_slots(both)
    slots.reserve(asked(api=1))
    assert (slots.reserved, slots.free) == ({"api": [3]}, [1, 2])
    slots.reserve([])
    assert slots.free == [1, 2, 3]
    assert slots.reserve(asked(web=4)) == []
    assert slots.reserve(asked(web=3)) == ["web"], "it needs fewer now"
    slots.reserve([])
    slots.reserve(asked(web=5))
    assert slots.reserved == {"web": [1, 2, 3]}
    assert slots.lacks_slots(asked(web=5)), "one is taken yet"
    slots.used.clear()
    slots.reserve(asked(web=5))
    assert not slots.lacks_slots(asked(web=5)), "more than there is hurries nobody for ever"


SLOTS = 4
GRACE_S, YIELD_S = 20.0, 3.0
TURN_S = 0.5


class FakeProcess:
    """A node that does what the test says; a stubborn one ends by KILL alone."""

    def __init__(self, stubborn: bool) -> None:
        self.returncode: int | None = None
        self._stubborn = stubborn

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def terminate(self) -> None:
        if self.alive and not self._stubborn:
            self.returncode = -15

    def kill(self) -> None:
        self.returncode = -9 if self.alive else self.returncode

    def tail(self, n: int = 20) -> list[str]:
        return ["a last line"]


def taken_over(run: JobRun) -> JobRun:
    """Return the job in the next fleet, after this one was killed."""
    job = replace(run.job, progress=JobProgress.from_json(run.progress(0).to_json()))
    return JobRun(job, run.spec, Path("/none"), 0.0, 1)


class World:
    """A fleet without processes, in virtual time."""

    def __init__(self, mode: Any, stubborn: Callable[[], bool], cards: Any = ()) -> None:
        self.now_s = 100.0
        self.cards: list[str | None] = []  # of the nodes that were started
        self.jobs: list[JobRun] = []
        self.reservations: list[Reservation] = []
        self.stubborn = stubborn
        elastic = ElasticConfig(mode=mode, freeze_s=2.0)
        config = JobRunnerConfig(
            "r", "h", "redis://none", ((),) * SLOTS, Path("/none"), elastic, YIELD_S, cards=cards
        )
        self.scaler = NodeScaler(config, JobBoard(MemoryStore()), lambda run, what: None)

    def start(self, command: Command, **_: object) -> FakeProcess:
        self.cards.append((command.env or {}).get("CUDA_VISIBLE_DEVICES"))
        return FakeProcess(self.stubborn())

    def submit(self, least: int, more: int, retries: int) -> None:
        number = len(self.jobs) + 1
        spec = QueuedJobSpec(
            f"j{number}", command="x", min_nodes=least, max_nodes=least + more,
            retries=retries, grace_s=GRACE_S,
        )  # fmt: skip
        job = QueuedJob(spec.name, number)
        self.jobs.append(JobRun(job, spec, Path("/none"), self.now_s, 1))

    def turn(self) -> None:
        self.now_s += TURN_S
        self.scaler.reap(self.jobs, self.now_s)
        self.scaler.slots.reserve(self.reservations)
        going = [one for one in self.jobs if not one.progress(0).ended]
        self.scaler.rescale(going, self.reservations, self.now_s)
        self.check()

    def check(self) -> None:
        used = [node.slot for one in self.jobs for node in one.nodes.all]
        reserved = [slot for slots in self.scaler.slots.reserved.values() for slot in slots]
        assert len({*used, *reserved}) == len(used) + len(reserved), "a slot has one owner"
        assert set(used) == self.scaler.slots.used
        for one in self.jobs:
            assert len(one.nodes.staying) <= one.spec.max_nodes
            progress = one.progress(0)
            assert progress.running == len(one.nodes.all)
            assert not (progress.ended and progress.running)
            assert taken_over(one).endings == replace(one.endings, refused=False)

    def nodes(self) -> list[FakeProcess]:
        return [node.process for one in self.jobs for node in one.nodes.all]  # type: ignore[misc]


EVENT = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from([0, 1, -9])),
    st.tuples(st.just("reserve"), st.integers(0, 5)),
    st.tuples(st.just("stop"), st.integers(0, 9)),
    st.tuples(st.just("scale"), st.integers(0, 9), st.sampled_from([None, 1, 2, 5])),
    st.tuples(st.just("pass"), st.integers(1, 8)),
)


def happen(world: World, event: Any) -> None:
    match event:
        case ("submit", least, more, retries):
            world.submit(least, more, retries)
        case ("end", which, code):
            if alive := [one for one in world.nodes() if one.alive]:
                alive[which % len(alive)].returncode = code
        case ("reserve", slots):
            world.reservations = [Reservation("web", slots, 1, 5.0)] if slots else []
        case ("stop", which) if world.jobs:
            one = world.jobs[which % len(world.jobs)]
            one.job = replace(one.job, desired=DesiredJobState(stop=True))
        case ("scale", which, count) if world.jobs:
            one = world.jobs[which % len(world.jobs)]
            one.job = replace(one.job, desired=DesiredJobState(nodes=count))
        case ("pass", turns):
            for _ in range(turns):
                world.turn()
    world.turn()


@given(st.lists(EVENT, max_size=25), st.sampled_from(["elastic", "gang"]), st.data())
def test_a_slot_has_one_owner_and_all_jobs_end(
    events: list[Any], mode: str, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(mode, lambda: data.draw(st.booleans()))
        patch.setattr(job_run, "start", world.start)
        for event in events:
            happen(world, event)

        if world.reservations:  # reserved slots are free in time, even if nodes are slow to end
            wanted = min(world.reservations[0].slots, SLOTS)
            for _ in range(int((YIELD_S + 2) / TURN_S)):
                world.turn()
            assert len(world.scaler.slots.reserved["web"]) == wanted
        world.reservations = []
        for _ in range(150):  # nodes end well now: each job that fits ends
            if not world.nodes() and all(one.progress(0).ended for one in world.jobs):
                break
            for node in world.nodes():
                node.returncode = 0 if node.alive else node.returncode
            world.turn()
        for one in world.jobs:
            most = one.spec.max_nodes if mode == "gang" else one.spec.min_nodes
            state = one.progress(0).state
            assert state in ("succeeded", "failed", "stopped") or most > SLOTS, state
        assert world.scaler.slots.used == set()


def world_with_nodes(
    patch: pytest.MonkeyPatch, most: int, cards: tuple[str, ...] = ()
) -> tuple[World, JobRun]:
    world = World("elastic", lambda: False, cards)
    patch.setattr(job_run, "start", world.start)
    world.submit(1, most - 1, 3)
    world.turn()
    return world, world.jobs[0]


def test_each_slot_has_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = world_with_nodes(monkeypatch, SLOTS, ("2", "3", "0", "1"))
    assert world.cards == ["2", "3", "0", "1"]
    world, _ = world_with_nodes(monkeypatch, 1)
    assert world.cards == [None], "it sees all cards"
    with pytest.raises(UsageError, match="1 cards for 4 slots"):
        World("elastic", lambda: False, ("0",))


def test_a_node_that_ends_meanwhile_is_found_and_has_not_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, run = world_with_nodes(monkeypatch, 2)
    world.nodes()[1].returncode = 1  # it ends before it is told to leave
    run.job = replace(run.job, desired=DesiredJobState(nodes=1))
    world.now_s += 10.0  # it may be changed again
    world.scaler.rescale(world.jobs, [], world.now_s)
    world.turn()
    assert (run.endings.failures, len(run.nodes.all)) == (1, 1)
    asked = iter([True, False, False])  # it ends while it is looked for
    monkeypatch.setattr(FakeProcess, "alive", property(lambda process: next(asked)))
    assert len(run.nodes.poll(0.0)) + len(run.nodes.all) == 1


@pytest.mark.parametrize(
    ("code", "reason", "state"),
    [(0, "a node has finished; waiting", "succeeded"), (2, "its nodes are leaving: n", "failed")],
)
def test_a_node_that_ends_for_good_ends_the_job_though_its_fleet_ends(
    monkeypatch: pytest.MonkeyPatch, code: int, reason: str, state: str
) -> None:
    world, run = world_with_nodes(monkeypatch, 2)
    run.spec = replace(run.spec, command="", train="job.py", min_nodes=2)
    world.nodes()[1].returncode = code
    world.turn()
    assert run.progress(0).reason.startswith(reason)
    killed = taken_over(run)
    world.nodes()[0].returncode = 0
    world.scaler.close(world.jobs)
    ended, after = run.progress(0), killed.progress(0)
    assert ended.state == state
    assert killed.view() is None, "it starts no node"
    assert (after.state, after.reason) == (ended.state, ended.reason)


def test_a_training_goes_on_without_a_node_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job file was edited after the first nodes had started."""
    world, run = world_with_nodes(monkeypatch, 3)
    run.spec = replace(run.spec, command="", train="job.py")
    for code, nodes, state in ((2, 2, "running"), (1, 1, "running"), (2, 0, "failed")):
        world.nodes()[-1].returncode = code
        for _ in range(9):
            world.turn()
        assert (len(world.nodes()), run.progress(0).state) == (nodes, state)
        assert run.progress(0).reason.startswith("no node is added: node 3 ended") == (nodes > 0)


def board_with(body: dict[str, Any], *reports: dict[str, Any]) -> JobBoard:
    board = JobBoard(MemoryStore())
    board.join("ctr", "n1", {}, 10)
    assert board.lead("ctr", "n1", 10)
    assert board.publish("ctr", of_job(board, "ctr", "n1"), 1, body)
    for rank, facts in enumerate(reports):
        assert board.report("ctr", 1, rank, facts)
    return board


def test_the_rank_that_is_furthest_counts_and_odd_reports_spoil_nothing() -> None:
    rank = {"step": 30, "steps": 120}
    ranks = [rank, {"step": 60, "steps": 120}]
    found = progress_or_unknown(board_with({"nodes": ["n1"]}, *ranks), "ctr", 1)
    assert found == TrainingProgress(0.5, True)
    found = progress_or_unknown(board_with({"nodes": []}, {"step": 30}), "ctr", 1)
    assert found == TrainingProgress(None, False)
    for rows, full in ((4, False), (3, True)):  # with two ranks on each node
        board = board_with({"nodes": ["n1"]}, *[one | {"total_batch": rows} for one in ranks])
        assert progress_or_unknown(board, "ctr", 3) == TrainingProgress(0.5, full)
    odds: tuple[Any, ...] = ("x", -1, None, [], {}, 1.5, float("nan"), float("inf"), 10**400)
    for odd in odds:
        found = progress_or_unknown(board_with({"nodes": odd}, rank), "ctr", 1)
        assert found == TrainingProgress(0.25, False), odd
        for facts in ({"step": odd, "steps": 120}, {"step": 1, "steps": odd}):
            found = progress_or_unknown(board_with({"nodes": ["n1"]}, facts, rank), "ctr", 1)
            assert found.steady
            assert found.progress is not None, odd
            assert 0 <= found.progress <= 1, odd
