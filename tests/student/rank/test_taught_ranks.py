"""Ranks whose batches teachers label; a teacher that falls silent holds them, and they say so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edl.proto import tensors
from edl.proto.arena import Array
from edl.student.checkpoint import SnapshotOwner
from edl.student.words import EXIT_AGAIN, Left, Progress
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher
from edl.tests.student.id_log import assert_each_once, lines
from edl.tests.student.rank.world import World, settings

pytestmark = pytest.mark.system

ROWS = 96


class Quadrants:
    """Knows the answer, and may be told to say nothing."""

    def __init__(self) -> None:
        self.speaks = threading.Event()
        self.speaks.set()
        self.silent_from = 1 << 30
        self.asked = 0

    def __call__(self, request: tensors.InferRequest) -> dict[str, Array]:
        self.asked += 1
        if self.asked > self.silent_from:
            self.speaks.wait(60)
        points = next(iter(request.inputs.values()))
        quadrant = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
        return {"logits": (8.0 * np.eye(CLASSES)[quadrant]).astype(np.float32)}


@pytest.fixture
def teacher() -> Iterator[tuple[ScriptedTeacher, Quadrants]]:
    quadrants = Quadrants()
    server = ScriptedTeacher(quadrants)
    yield server, quadrants
    quadrants.speaks.set()
    server.stop()


def test_ranks_are_taught_and_leave_a_silent_teacher(
    teacher: tuple[ScriptedTeacher, Quadrants], tmp_path: Path
) -> None:
    server, quadrants = teacher
    job = settings(epochs=400, teachers=(server.address,), id_log=str(tmp_path))
    quadrants.silent_from = 80
    with (
        SnapshotOwner() as owner,
        World(job, 2, owner=owner, environment={"EDL_TEST_TEACH": "1"}) as world,
    ):

        def held() -> bool:
            last = world.said(Progress)[-1:]
            waits = bool(last) and last[0].waiting_for.startswith("soft labels")
            return quadrants.asked > quadrants.silent_from and waits

        world.wait(held, "that soft labels are waited for")
        told = [p for p in world.said(Progress) if p.losses]
        assert set(told[-1].losses) == {"hard", "soft", "total"}
        assert told[-1].teachers == 1
        assert told[-1].losses["soft"] < told[0].losses["soft"] / 2
        world.crew.leave()
        assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
        assert all(left.safe for left in world.said(Left))
        assert owner.newest_step() == world.said(Left)[0].step
    whole = max(line["epoch"] for line in lines(tmp_path))  # the one that was left
    assert whole >= 2
    assert_each_once(tmp_path, [ROWS] * whole, but=whole)
