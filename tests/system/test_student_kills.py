"""Ranks that are killed or stopped while they train: the job ends by itself, nothing is lost."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.tests.student.id_log import check_each_once
from edl.tests.system.student_nodes import Nodes

ROWS, EPOCHS = 480, 8
HANG_S = 3.0
#: Of 480 rows a step of 12: what a job without any death comes to is far below.
WELL_TRAINED = 0.01
AGAIN_S = 15.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    options = ("--ranks-per-node", 2, "--epochs", EPOCHS, "--save-every-steps", 15)
    environment = {"EDL_TEST_ROWS": str(ROWS), "EDL_TEST_STEP_S": "0.02"}
    nodes = Nodes(tmp_path, (*options, "--hang", HANG_S), environment=environment)
    yield nodes
    nodes.close()


def disturb(nodes: Nodes, rng: random.Random, signals: list[signal.Signals]) -> None:
    """Send rank 1 each signal at a random step, and see the next step in time."""
    node = nodes.start()
    for generation, number in enumerate(signals, 1):
        nodes.reach(generation, rng.randrange(1, 40))
        began = time.monotonic()
        os.kill(nodes.rank(1, node), number)
        nodes.reach(generation + 1)
        took_s = time.monotonic() - began - (HANG_S if number == signal.SIGSTOP else 0.0)
        print(f"{number.name}: next step after {took_s:.1f} s")
        assert took_s <= AGAIN_S
    nodes.end()
    check_each_once(nodes.ids, nodes.restored(), ROWS, EPOCHS)
    said = "\n".join(node.tail(1000))
    assert len(nodes.restored()) == len(signals) + 1, said
    error = re.findall(r"^finished at step \d+  error (\S+)", said, re.MULTILINE)
    assert float(error[0]) < WELL_TRAINED


@pytest.mark.serial
def test_three_kills_and_a_hang(nodes: Nodes, rng: random.Random) -> None:
    disturb(nodes, rng, [signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL, signal.SIGKILL])


@pytest.mark.nightly
@pytest.mark.serial
@pytest.mark.timeout(600)
@pytest.mark.parametrize("turn", range(10))
def test_fifty_kills(nodes: Nodes, rng: random.Random, turn: int) -> None:
    nodes.options = (*nodes.options, "--seed", turn)
    disturb(nodes, rng, [signal.SIGKILL] * 5)
