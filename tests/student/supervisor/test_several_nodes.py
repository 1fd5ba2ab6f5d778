"""Nodes that come, go, fail and lose their board while they train."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.errors import EdlError, RegistryUnavailable
from edl.tests.student.id_log import restored_steps, surviving
from edl.tests.student.supervisor.fleet import JOB, Fleet
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system

#: A lease in the midst of a job: of two ranks, the 21st step's.
HELD_FROM = 40


class FaultyBoard:
    """A board that can be away, can be emptied, and can keep shards back.

    Attributes:
        held_from: the lease, counted from 0, that is given only once `goes_on` is set, as are all
            behind it; None: none is kept back.
    """

    def __init__(self) -> None:
        self.board = MemoryBoard()
        self.away = threading.Event()
        self.held_from: int | None = None
        self.goes_on = threading.Event()
        self._leases = itertools.count()

    def lease(self, *asked: Any) -> Any:
        if self.held_from is not None and next(self._leases) >= self.held_from:
            self.goes_on.wait()
        return self.__getattr__("lease")(*asked)

    def __getattr__(self, name: str) -> Any:
        if self.away.is_set():
            raise RegistryUnavailable("Redis at 127.0.0.1:1 does not answer")
        return getattr(self.board, name)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, batch=12, rows=600, epochs=2, board=FaultyBoard())
    fleet.settings = {"nodes": (1, 4), "save_every_steps": 50}
    yield fleet
    fleet.board.away.clear()  # type: ignore[attr-defined]
    fleet.board.goes_on.set()  # type: ignore[attr-defined]
    fleet.close()


def grown(fleet: Fleet, generation: int, ranks: int) -> None:
    """Wait until the generation, of so many ranks, has made a step."""
    wait_until(lambda: fleet.generation() >= generation)
    fleet.reach(1, generation)
    assert fleet.events("generation")[generation - 1]["ranks"] == ranks


def test_nodes_come_and_go_while_the_total_batch_stays(fleet: Fleet) -> None:
    fleet.rows, fleet.epochs = 2400, 3
    a = fleet.start("a")
    grown(fleet, 1, 1)
    b = fleet.start("b")
    grown(fleet, 2, 2)
    c = fleet.start("c")
    grown(fleet, 3, 3)
    b.stop.request()
    grown(fleet, 4, 2)
    a.stop.request()
    grown(fleet, 5, 1)
    fleet.start("d")
    grown(fleet, 6, 2)
    fleet.finished()
    scaled = [(one["old"], one["new"]) for one in fleet.events("scaled")]
    assert scaled == [(1, 2), (2, 3), (3, 2), (2, 1), (1, 2)]
    worlds = [sorted(one["nodes"]) for one in fleet.events("generation")]
    assert worlds == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "c"], ["c"], ["c", "d"]]
    lines = surviving(fleet.folder / "ids", restored_steps(fleet.board.events(JOB, count=1000)))
    totals = {line["step"]: line["total"] for line in lines}
    assert set(totals.values()) == {12}
    assert sorted(totals) == list(range(1, 601))
    assert c.outcome is not None
    assert c.outcome.kind == "finished"


def test_a_node_whose_ranks_fail_twice_is_left_out(fleet: Fleet) -> None:
    fleet.settings |= {"nodes": (1, 2)}
    fleet.means = replace(fleet.means, gather_s=DEADLINE_S)  # until both are there
    fleet.job = {"crash": {"step": 20, "rank": 1, "times": 2}}
    fleet.start("a"), fleet.start("b")
    fleet.end()
    (out,) = [node for node in fleet.nodes if node.error is not None]  # who came second has rank 1
    assert isinstance(out.error, EdlError)
    assert f"goes on without node {out.name}" in str(out.error)
    assert f"rank 1 on node {out.name} crashed on step 20" in str(out.error)
    assert [one["ranks"] for one in fleet.events("generation")] == [2, 2, 1]


@pytest.mark.parametrize(
    ("rows", "job", "settings", "why"),
    [
        (600, {}, {"nodes": (2, 2)}, ""),
        # The ranks tell the batch: the settings do not.
        (
            100,
            {"batch": 2},
            {"nodes": (2, 4), "total_batch": None},
            " with 2 nodes, as a step has 2 rows",
        ),
    ],
)
def test_a_node_that_the_world_has_no_use_for_waits_in_reserve(
    fleet: Fleet, rows: int, job: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    board: Any = fleet.board
    board.held_from = HELD_FROM
    fleet.rows, fleet.job = rows, job
    fleet.settings |= settings
    fleet.start("a"), fleet.start("b")
    grown(fleet, 1, 2)
    c = fleet.start("c")
    reserve = f"c in reserve: the world is full{why}"
    wait_until(lambda: any(reserve in line for line in c.lines))
    board.goes_on.set()
    fleet.finished()
    assert fleet.generation() == 1
    assert c.outcome is not None
    assert c.outcome.kind == "finished"


def test_too_few_nodes_are_waited_for_with_a_reason(fleet: Fleet) -> None:
    fleet.settings |= {"nodes": (2, 2)}
    a = fleet.start("a")
    wait_until(lambda: any("1 of at least 2 nodes alive" in line for line in a.lines))
    fleet.start("b")
    fleet.finished()


def test_training_goes_on_while_the_board_is_away(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.rows, fleet.epochs, fleet.job = 3600, 1, {"step_s": 0.02}  # longer than that takes to see
    fleet.settings |= {"nodes": (1, 1), "coordinator": None}
    fleet.start("a")
    fleet.reach(10)
    fleet.board.away.set()  # type: ignore[attr-defined]
    missed = "training goes on without the job board: Redis at 127.0.0.1:1 does not answer"
    wait_until(lambda: missed in caplog.text)
    ids = fleet.folder / "ids" / "rank-0.jsonl"

    def last() -> int:
        whole, _, _ = ids.read_text().rpartition("\n")  # behind it one may be on its way
        return int(json.loads(whole.splitlines()[-1])["step"])

    before = last()
    wait_until(lambda: last() >= before + 20)
    fleet.board.away.clear()  # type: ignore[attr-defined]
    fleet.finished()
    assert fleet.generation() == 1


def test_a_lease_with_a_lost_answer_is_still_trained(fleet: Fleet) -> None:
    board: Any = fleet.board
    leases, lost = itertools.count(), list[Any]()

    def lease(*asked: Any) -> Any:
        given = board.board.lease(*asked)
        if next(leases) == HELD_FROM:
            lost.append(given)
            raise RegistryUnavailable("no answer in time")
        return given

    board.lease = lease
    fleet.settings |= {"nodes": (2, 4)}
    fleet.start("a"), fleet.start("b")
    fleet.finished()
    assert lost
    assert fleet.generation() == 1


def test_a_board_that_forgot_all_gets_a_new_generation(fleet: Fleet) -> None:
    board: Any = fleet.board
    board.held_from = HELD_FROM
    fleet.means = replace(fleet.means, ttl_s=2.0)  # so long are those waited for who may be there
    fleet.settings |= {"nodes": (2, 4)}
    fleet.start("a"), fleet.start("b")
    grown(fleet, 1, 2)
    before = restored_steps(fleet.board.events(JOB, count=1000))
    board.board = MemoryBoard()
    board.goes_on.set()
    fleet.reach(1, 2)
    fleet.end()
    restored = before | restored_steps(fleet.board.events(JOB, count=1000))
    assert {line["step"] for line in surviving(fleet.folder / "ids", restored)} == set(
        range(1, 101)
    )
    assert all(node.error is None for node in fleet.nodes)
