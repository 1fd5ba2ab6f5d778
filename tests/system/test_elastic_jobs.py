"""Jobs on a fleet of slots, all of it real processes: from `edl job submit` to each kind of end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.system.fleet_world import World, new_world

#: Runs until it is told to leave, and says so.
WORKS = (
    """sh -c 'trap "echo bye; exit 0" TERM; echo up $EDL_JOB_NODE; while :; do sleep 0.05; done'"""
)
#: Does not leave.
STUBBORN = """sh -c 'trap "echo no" TERM; echo up; while :; do sleep 0.05; done'"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as world:
        yield world


@pytest.mark.timeout(60)
def test_from_submission_to_each_end(world: World) -> None:
    """One elastic job, one that comes and takes a node of it, one that fails, one that is done."""
    both = world.file("both", WORKS, min_nodes=1, max_nodes=2)
    before = world.board.jobs()
    assert "nothing was submitted" in world.edl("submit", both, "--dry-run")
    assert world.board.jobs() == before == []
    assert "nobody runs jobs now" in world.edl("submit", both)
    assert world.job("both").progress.state == "creating"
    with pytest.raises(UsageError, match="has not ended"):
        world.edl("submit", both)

    world.fleet()
    world.reaches("both", "running", 2)
    wait_for(lambda: "node 2 | up 2" in world.printed("both"))
    world.edl("submit", world.file("one", WORKS, min_nodes=1, max_nodes=1))
    world.reaches("one", "running", 1)
    world.reaches("both", "running", 1)
    wait_for(lambda: "node 2 | bye" in world.printed("both"))
    listed = json.loads(world.edl("list", "--json"))
    assert [(job["name"], job["state"], job["running"]) for job in listed["jobs"]] == [
        ("both", "running", 1), ("one", "running", 1),
    ]  # fmt: skip
    assert listed["fleet"]["taken"] == [0, 1]
    assert "1:2" in world.edl("list")
    assert "elastic jobs: 2 running; fleet on " in world.status()

    assert "one: stopped" in world.edl("stop", "one", "--wait", 20)
    world.reaches("both", "running", 2)
    world.edl("scale", "both", 1)
    world.reaches("both", "running", 1)
    with pytest.raises(UsageError, match="1 to 2 nodes, not with 3"):
        world.edl("scale", "both", 3)
    world.edl("scale", "both", "auto")
    world.reaches("both", "running", 2)

    broken = "sh -c 'echo it begins; echo no such data; exit 3'"
    world.edl("submit", world.file("broken", broken, retries=1))
    world.reaches("broken", "failed", 0)
    failed = world.job("broken").progress
    assert "exit code 3" in failed.reason
    assert "no such data" in failed.reason
    assert failed.failures == 2
    logs = world.edl("logs", "broken").splitlines()
    assert logs == [f"node {n} | {text}" for n in (1, 2) for text in ("it begins", "no such data")]

    world.edl("submit", world.file("short", "sh -c 'sleep 0.1; echo result 42'"))
    assert world.edl("logs", "short", "--follow") == "node 1 | result 42\n"
    assert world.job("short").progress.state == "succeeded"
    told = world.edl("events", "--last", 200)
    for words in ("both: node 2 is told to leave", "one: stopped:", "short: succeeded:"):
        assert words in told


@pytest.mark.timeout(60)
def test_a_runner_that_dies_takes_its_nodes_along_and_the_next_one_goes_on(world: World) -> None:
    world.edl("submit", world.file("both", WORKS, min_nodes=1, max_nodes=2))
    first = world.fleet()
    world.reaches("both", "running", 2)
    wait_for(lambda: "node 2 | up 2" in world.printed("both"))
    second = world.fleet()
    second.expect("waits in reserve", 20)
    nodes = world.pids(first)
    assert len(nodes) >= 2
    first.kill()
    wait_gone(nodes)
    second.expect("runs jobs on 2 slots", 20)
    wait_for(lambda: {"node 3 | up 3", "node 4 | up 4"} <= set(world.printed("both")))
    world.reaches("both", "running", 2)

    second.stop(grace_s=20.0)  # in order: nodes are told to leave, and the job waits
    assert second.returncode == 0
    progress = world.job("both").progress
    assert (progress.state, progress.running) == ("creating", 0)
    assert "the fleet was ended" in progress.reason
    assert {"node 3 | bye", "node 4 | bye"} <= set(world.printed("both"))
    world.edl("stop", "both")
    world.fleet()
    world.reaches("both", "stopped", 0)


@pytest.mark.timeout(60)
def test_a_reservation_takes_slots_back_also_from_who_does_not_leave(world: World) -> None:
    world.edl("submit", world.file("kind", WORKS, min_nodes=1, max_nodes=2))
    world.fleet(3, "--yield-within", 1)
    world.reaches("kind", "running", 2)
    world.edl("submit", world.file("deaf", STUBBORN, grace_s=600))
    world.reaches("deaf", "running", 1)
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match="3 slots, 4 cannot"):
        world.edl("reserve", 4)

    with world.reserved(2) as said:
        where, after_s = said.groups()
        assert float(after_s) < 10.0
        assert where.count("slot") == 2
        assert ("cores" in where) == (cores >= 3)
        assert "web has 2 of 2" in world.edl("list")
        taken = {slot for job in world.board.jobs() for slot in job.progress.slots}
        assert len(taken) == 1
        with pytest.raises(UsageError, match="already"):
            world.edl("reserve", 1, "--name", "web")
    world.reaches("kind", "running", 2)
    world.reaches("deaf", "running", 1)
    wait_for(lambda: world.printed("deaf")[-1].endswith("| up"))
    with world.reserved(3):  # all of them, and who was told to leave stays if it can
        assert "node 1 | bye" in world.printed("kind")
        assert world.printed("deaf")[-1].endswith("| no")
        assert [job.progress.state for job in world.board.jobs()] == ["creating", "creating"]
        world.edl("stop", "deaf")
        world.reaches("deaf", "stopped", 0)
