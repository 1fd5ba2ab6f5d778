"""However many ranks train, and in whatever pieces: it is one training, and plain Paddle's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl.supervise import python_command, start
from edl.tests.student.id_log import assert_each_once
from edl.tests.student.rank.world import World, settings

pytestmark = pytest.mark.system

ROWS, BATCH, EPOCHS = 90, 16, 2
STEPS = EPOCHS * 6  # the last of an epoch has 10 rows
ENVIRONMENT = {"EDL_TEST_ROWS": str(ROWS), "EDL_TEST_BATCH": str(BATCH), "EDL_TEST_PLAIN": "1"}


def parameters(folder: Path, rank: int, step: int) -> list[np.ndarray]:
    with np.load(folder / f"rank{rank}-step{step}.npz") as file:
        return [file[name] for name in file.files]


def environment(folder: Path) -> dict[str, str]:
    folder.mkdir()
    return {**ENVIRONMENT, "EDL_TEST_DUMP": str(folder)}


def test_one_training_whatever_the_world(tmp_path: Path) -> None:
    one, two, three, plain = (tmp_path / name for name in ("one", "two", "three", "plain"))
    job = settings(epochs=EPOCHS, deal="static", id_log=str(tmp_path / "ids"))
    in_pieces = settings(epochs=EPOCHS, deal="static", micro_batch=2)
    command = python_command(
        "plain", "edl.tests.student.rank.plain", EPOCHS, env=environment(plain), guard=True
    )
    plainly = start(command)
    try:
        with (
            World(settings(epochs=EPOCHS), 1, environment=environment(one)) as alone,
            World(job, 2, environment=environment(two)) as both,
            World(in_pieces, 3, environment=environment(three)) as all_three,
        ):
            assert alone.ended() == {0: 0}
            assert both.ended() == {0: 0, 1: 0}
            assert all_three.ended() == {0: 0, 1: 0, 2: 0}
        assert plainly.wait(60) == 0, plainly.tail()
    finally:
        plainly.kill()
        plainly.wait(10)
    assert_each_once(tmp_path / "ids", [ROWS] * EPOCHS)
    for step in range(1, STEPS + 1):
        reference = parameters(one, 0, step)
        for ours, theirs in zip(reference, parameters(plain, 0, step), strict=True):
            assert ours.tobytes() == theirs.tobytes(), f"step {step} is not plain Paddle's"
        for folder, world in ((two, 2), (three, 3)):
            first = parameters(folder, 0, step)
            for rank in range(1, world):
                for ours, theirs in zip(first, parameters(folder, rank, step), strict=True):
                    assert ours.tobytes() == theirs.tobytes(), f"ranks differ at step {step}"
            for ours, theirs in zip(first, reference, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    moved = np.abs(parameters(one, 0, STEPS)[0] - parameters(one, 0, 1)[0]).max()
    assert moved > 0.01, "nothing was learned, so nothing was compared"
