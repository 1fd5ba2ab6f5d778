"""Nodes that join and leave a training while it runs, by a real Redis; and what operators see."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl.student.checkpoint import Repository
from edl.supervise import Process
from edl.tests.ground.programs import wait_for
from edl.tests.student.id_log import check_each_once, surviving
from edl.tests.system.redis_servers import redis_server
from edl.tests.system.student_nodes import NAME, START_S, Nodes

BATCH = 12


@pytest.fixture
def redis() -> Iterator[tuple[str, psutil.Process]]:
    """A Redis: its URL, and the process itself."""
    with redis_server() as (guard, port):
        (process,) = psutil.Process(guard.pid).children()
        yield f"redis://127.0.0.1:{port}", process
        process.resume()


@pytest.fixture
def url(redis: tuple[str, psutil.Process]) -> str:
    return redis[0]


@pytest.fixture
def nodes(tmp_path: Path, url: str) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, ("--coordinator", url, "--save-every-steps", 50))
    yield nodes
    nodes.close()


def says_again(process: Process, text: str) -> None:
    """Wait until a node says so, once more than before."""

    def said() -> int:
        return sum(text in line for line in process.tail(1000))

    before = said()
    wait_for(lambda: said() > before, START_S)


def status(url: str, *options: str) -> str:
    argv = [sys.executable, "-P", "-m", "edl", "status", "--coordinator", url, *options]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.timeout(300)
def test_two_three_two_one_two_nodes(nodes: Nodes, redis: tuple[str, psutil.Process]) -> None:
    """Two come, two leave, one comes; then Redis is away for a while."""
    url, server = redis
    rows, epochs = 2400, 5
    nodes.environment = {"EDL_TEST_ROWS": str(rows), "EDL_TEST_STEP_S": "0.03"}
    nodes.options = (*nodes.options, "--nodes", "1:4", "--epochs", epochs)
    a = nodes.start()  # alone: of two that start at once either may miss the first world
    nodes.reach(1, 3)
    b = nodes.start()
    nodes.reach(2, 3)
    c = nodes.start()
    nodes.reach(3, 3)
    b.send_signal(signal.SIGINT)
    nodes.reach(4, 3)
    a.send_signal(signal.SIGTERM)
    nodes.reach(5, 3)
    nodes.start()
    nodes.reach(6, 3)
    server.suspend()
    says_again(c, "training goes on without the job board")
    server.resume()
    says_again(c, "the job board answers again")
    shown = status(url)
    told = json.loads(status(url, "--json"))["jobs"]
    assert (a.wait(START_S), b.wait(START_S)) == (-signal.SIGTERM, 128 + signal.SIGINT)
    restored = nodes.restored() | {1: 0}
    nodes.processes = [one for one in nodes.processes if one not in (a, b)]
    nodes.end()
    assert set(restored) >= {1, 2, 3, 4, 5, 6}
    # Each change of the world was told to the job once, on each rank of the new one.
    changes = ["1 2", "2 3", "3 2", "2 1", "1 2"]
    assert [k for k, _ in itertools.groupby(nodes.scaled())] == changes
    assert sorted(nodes.scaled()) == sorted(
        ["1 2"] * 2 + ["2 3"] * 3 + ["3 2"] * 2 + ["2 1"] + ["1 2"] * 2
    )
    # The total batch did not change; where shares did, an epoch may end with a step of few rows.
    check_each_once(nodes.ids, restored, rows, epochs)
    totals = [line["total"] for line in surviving(nodes.ids, restored)]
    assert max(totals) == BATCH
    assert totals.count(BATCH) > 0.97 * len(totals)
    # Operators see the generations.
    assert NAME in shown
    assert [one["ranks"] for one in told[0]["generations"]][:6] == [1, 2, 3, 2, 1, 2]
    assert "ranks by generation: 1 -> 2 -> 3 -> 2 -> 1 -> 2" in shown
    newest = Repository(str(nodes.folder / "checkpoints")).newest_valid()
    assert newest is not None
    assert any(f"finished at step {newest.step}" in line for line in c.tail(1000))


@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.timeout(600)
def test_twelve_ranks_form_a_world(nodes: Nodes) -> None:
    nodes.environment = {"EDL_TEST_ROWS": "2400"}
    nodes.options = (*nodes.options, "--nodes", "3", "--ranks-per-node", 4, "--epochs", 2)
    for _ in range(3):
        nodes.start("--total-batch", 48)
    nodes.end()
    check_each_once(nodes.ids, {1: 0}, 2400, 2)
    ranks = {line["rank"] for line in surviving(nodes.ids, {1: 0})}
    assert ranks == set(range(12))
