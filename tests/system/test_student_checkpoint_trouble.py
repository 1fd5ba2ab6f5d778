"""A training whose checkpoints meet trouble: no room for a while, then a damaged newest one."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.student.checkpoint import Repository
from edl.supervise import Process
from edl.tests.ground.programs import wait_for
from edl.tests.system.student_nodes import END_S, START_S, Nodes

#: Less than any checkpoint takes.
NO_ROOM_BYTES = 2000
STEPS = 100


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    running = Nodes(
        tmp_path,
        ("--total-batch", 12, "--save-every-steps", 3, "--steps", STEPS),
        environment={"EDL_TEST_STEP_S": "0.05"},
    )
    yield running
    running.close()


def newest(place: Path) -> int:
    """The step of the newest valid checkpoint."""
    found = Repository(str(place)).newest_valid()
    return 0 if found is None else found.step


def lines(process: Process, words: str) -> list[str]:
    return [line for line in process.tail(1000) if re.search(words, line)]


@pytest.mark.timeout(300)
def test_nothing_is_lost_when_room_ends_and_a_checkpoint_is_damaged(
    nodes: Nodes, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    node = nodes.start()
    wait_for(lambda: newest(place) > 0, START_S)
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (NO_ROOM_BYTES, hard))
    wait_for(lambda: bool(lines(node, "File too large")), END_S)
    stayed, at = newest(place), nodes.last()[1]
    assert stayed > 0
    wait_for(lambda: nodes.last()[1] > at + 5, END_S)  # training goes on
    assert newest(place) == stayed
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (hard, hard))
    wait_for(lambda: newest(place) > stayed, END_S)
    nodes.end()
    assert newest(place) == nodes.last()[1] == STEPS
    (said,) = lines(node, "File too large")
    assert "training goes on" in said

    (damaged,) = place.glob(f"step-{STEPS:012d}/model.safetensors")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    before = next(one.step for one in Repository(str(place)).list() if one.step < STEPS)
    again = nodes.start()
    nodes.end()
    (said,) = lines(again, "is damaged")
    assert f"step-{STEPS:012d} is damaged: model.safetensors" in said
    assert f"step {before}" in "\n".join(again.tail(1000))
    assert newest(place) == STEPS
