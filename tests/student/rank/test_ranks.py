"""Real ranks: one training however many share it; how they end, and what they report."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edl.proto import tensors
from edl.proto.arena import Array
from edl.runtime.supervise import python_command, start
from edl.student.checkpoint import SnapshotOwner, open_checkpoint
from edl.student.messages import EXIT_AGAIN, Failed, Finished, Left, Progress, Ready, Saved, Scaled
from edl.tests.scripted_teacher import CLASSES, ScriptedTeacher
from edl.tests.student.id_log import assert_each_once, lines
from edl.tests.student.rank.world import JOB, World, on_disk, settings
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

ROWS, EPOCHS = 90, 2
STEPS = EPOCHS * 6  # the last of an epoch has 10 rows
PLAIN = {"EDL_TEST_ROWS": str(ROWS), "EDL_TEST_PLAIN": "1"}


def parameters(folder: Path, rank: int, step: int) -> list[np.ndarray]:
    with np.load(folder / f"rank{rank}-step{step}.npz") as file:
        return [file[name] for name in file.files]


def same_bits(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return [array.tobytes() for array in one] == [array.tobytes() for array in other]


def environment(folder: Path) -> dict[str, str]:
    folder.mkdir()
    return {**PLAIN, "EDL_TEST_DUMP": str(folder)}


@pytest.mark.parametrize("name", ["small_job", "torch_job"])
def test_one_training_whatever_the_world(name: str, tmp_path: Path) -> None:
    """One rank trains bit for bit as the framework alone; gradients that are sparse stay sparse."""
    one, two, three, plain = (tmp_path / folder for folder in ("one", "two", "three", "plain"))
    static = {"job_file": str(JOB.with_stem(name)), "epochs": EPOCHS, "deal": "static"}
    job = settings(**static, id_log=str(tmp_path / "ids"))
    in_pieces = settings(**static, micro_batch=2)
    module = f"edl.tests.student.rank.{name}"
    command = python_command("plain", module, EPOCHS, env=environment(plain), guard=True)
    plainly = start(command)
    try:
        with (
            World(settings(**static), 1, environment=environment(one)) as alone,
            World(job, 2, environment=environment(two)) as both,
            World(in_pieces, 3, environment=environment(three)) as all_three,
        ):
            assert alone.ended() == {0: 0}
            assert both.ended() == {0: 0, 1: 0}
            assert all_three.ended() == {0: 0, 1: 0, 2: 0}
        assert plainly.wait(DEADLINE_S) == 0, plainly.tail()
    finally:
        plainly.stop()
    assert_each_once(tmp_path / "ids", [ROWS] * EPOCHS)
    for step in range(1, STEPS + 1):
        reference = parameters(one, 0, step)
        assert same_bits(reference, parameters(plain, 0, step)), (
            f"step {step} is not that of the framework alone"
        )
        for folder, world in ((two, 2), (three, 3)):
            first = parameters(folder, 0, step)
            for rank in range(1, world):
                assert same_bits(first, parameters(folder, rank, step)), f"differ at step {step}"
            for ours, theirs in zip(first, reference, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    moved = np.abs(parameters(one, 0, STEPS)[0] - parameters(one, 0, 1)[0]).max()
    assert moved > 0.01, "nothing was learned, so nothing was compared"


@pytest.mark.parametrize("name", ["small_job", "torch_job"])
def test_a_world_leaves_and_another_goes_on(name: str, tmp_path: Path) -> None:
    """2 -> 1 ranks: nothing is trained twice or left out, and the change is told once.

    The second world has another rate, half of which is for one rank.
    """
    ids, file = tmp_path / "ids", str(JOB.with_stem(name))
    options = {"lr_policy": "linear", "amp": "bfloat16", "micro_batch": 5}
    job = settings(job_file=file, epochs=3, id_log=str(ids), **options)
    rows = {"EDL_TEST_ROWS": str(ROWS)}
    blocked = rows | {"EDL_TEST_BLOCK": "1:70"}  # rank 1 has read 45 + 24 rows for 9 steps
    with SnapshotOwner() as owner:
        with World(job, 2, owner=owner, environment=blocked) as world:
            world.wait(lambda: any(p.step >= 8 for p in world.said(Progress)), "step 8")
            world.crew.leave()
            assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
            first, second = world.said(Left)
            assert first == second
            assert first.safe
            assert owner.newest_step() == first.step == world.said(Saved)[-1].step
            assert not world.said(Scaled), "the first world is no change"
        left = on_disk(owner, tmp_path / "saved")
        assert left.world == 2
        names, env = ("lr", "learning_rate"), rows | {"EDL_TEST_RATE": "0.04"}
        again = World(
            job, 1, owner=owner, restore=left.location, changes=names, generation=2, environment=env
        )
        with again as world:
            world.wait(lambda: bool(world.said(Ready)), "the second world")
            assert world.said(Ready)[0].step == first.step
            assert world.ended() == {0: 0}
            assert world.said(Scaled) == [Scaled(2, 1)]
            assert [line for line in world.lines if "on_scale" in line] == ["0: on_scale(2, 1)"]
            metrics = world.said(Finished)[0].metrics
        done = open_checkpoint(on_disk(owner, tmp_path / "saved").location)
    assert_each_once(ids, [ROWS] * 3)
    totals = [line["total"] for line in lines(ids)]
    assert max(totals) == 16  # whatever the world
    assert done.world == 1
    assert done.state["learning_rate_factor"] == 0.5
    optimizer = done.state["training"]["optimizer"]
    if name == "torch_job":
        assert optimizer["schedule"]["last_epoch"] == done.step
        rates = [group["lr"] for group in optimizer["groups"]]
        assert rates == pytest.approx([cosine(0.02, done.step)] * 2)
    else:
        assert optimizer["rate"] == 0.02
    assert (done.state["metrics"], done.state["evaluated_step"]) == (metrics, done.step)
    assert metrics["accuracy"] > 0.4


def cosine(rate: float, step: int) -> float:
    """The rate of `torch_job` after this many steps."""
    return rate * (1 + math.cos(math.pi * step / 50)) / 2


def test_ranks_that_wait_report_it_and_can_leave() -> None:
    """Rank 1's data set hangs in its 40th row; others are not cut off, and all leave when told."""
    blocked = {"EDL_TEST_ROWS": "400", "EDL_TEST_BLOCK": "1:40"}
    with SnapshotOwner() as owner:
        with World(settings(epochs=1), 2, owner=owner, environment=blocked) as world:

            def waiting(rank: int) -> set[str]:
                """What it has waited for after the first step."""
                told = [word for who, word in world.words if who == rank]
                steps = [word for word in told if isinstance(word, Progress) and word.step]
                return {word.waiting_for for word in steps}

            feed, others = "the next batch of the feed", "the other ranks"
            world.wait(lambda: feed in waiting(1) and others in waiting(0), "that they wait")
            world.wait(lambda: any(word.peers_s > 0 for word in world.said(Progress)), "how long")
            world.crew.leave()
            assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
            assert all(left.safe for left in world.said(Left))
        assert owner.newest_step() == world.said(Left)[0].step > 0


def test_ranks_that_leave_without_memory_for_a_snapshot_have_lost_no_peer() -> None:
    """A failure would make the leader kill the other nodes, which may still write theirs."""
    told = {"EDL_TEST_NO_MEMORY": "1", "EDL_TEST_ROW_S": "0.02"}
    with SnapshotOwner() as owner:
        with World(settings(epochs=9), 2, owner=owner, environment=told) as world:
            world.wait(lambda: bool(world.said(Progress)), "a step")
            world.crew.leave()
            assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
            assert [left.safe for left in world.said(Left)] == [True, True]
            assert any("is not saved: a snapshot needs" in line for line in world.lines)
        assert owner.newest_step() is None


def test_a_crash_of_the_job_names_step_and_batch_and_ends_its_peers(tmp_path: Path) -> None:
    """The 4th call of the loss raises on rank 1, in an epoch of 16 rows a step."""
    ids = tmp_path / "ids"
    crash = {"EDL_TEST_CRASH": "1:4"}
    job = settings(epochs=1, id_log=str(ids))
    with World(job, 2, environment=crash) as world:
        codes = world.ended()
        assert codes[0] == EXIT_AGAIN
        assert codes[1] not in (0, EXIT_AGAIN)
        (left,) = world.said(Left)
        assert not left.safe
        assert "and a rank is gone" in left.why
        (failed,) = world.said(Failed)
        assert (failed.step, failed.epoch, failed.usage) == (4, 0, False)
        assert "the loss has had enough" in failed.error
        assert "small_job.py" in failed.error
        assert "small_job.py" in failed.traceback
        trained = {p for line in lines(ids) for p in line["positions"]}
        assert len(failed.positions) == 8
        assert not trained & set(failed.positions)


def test_a_log_of_ids_without_room_is_named(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.jsonl"
    log.symlink_to("/dev/full")
    with World(settings(epochs=1, id_log=str(tmp_path)), 1) as world:
        assert world.ended()[0] not in (0, EXIT_AGAIN)
        assert f"{log} cannot be written: No space left" in world.said(Failed)[0].error


def test_a_batch_smaller_than_the_world_is_refused() -> None:
    with World(settings(epochs=1, total_batch=1), 2) as world:
        assert 0 not in world.ended().values()
        assert all(failed.usage for failed in world.said(Failed))
        assert "too few for 2 ranks" in world.said(Failed)[0].error
        assert not world.said(Failed)[0].traceback


def test_a_feed_without_ids_continues_where_it_was_left(tmp_path: Path) -> None:
    """96 rows in 6 batches, 3 for each rank; evaluated over all of them, each rank its own."""
    stream = {"EDL_TEST_STREAM": "1", "EDL_TEST_ROW_S": "0.002"}
    options = {"id_log": str(tmp_path), "nodes": (1, 1), "ranks_per_node": 2}
    with SnapshotOwner() as owner:
        job = settings(epochs=400, **options)
        with World(job, 2, owner=owner, environment=stream) as world:
            world.wait(lambda: any(p.step >= 4 for p in world.said(Progress)), "step 4")
            world.crew.leave()
            assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
        left = on_disk(owner, tmp_path / "saved").location
        epochs = max(line["epoch"] for line in lines(tmp_path)) + 2
        job = settings(epochs=epochs, **options)
        again = World(job, 2, owner=owner, restore=left, generation=2, environment=stream)
        with again as world:
            assert world.ended() == {0: 0, 1: 0}
            first, second = world.said(Finished)
            assert first.step == second.step == 3 * epochs
            assert first.metrics == second.metrics
            assert first.metrics["accuracy"] == pytest.approx(first.metrics["by_paddle"])
    assert sum(line["rows"] for line in lines(tmp_path)) == epochs * 96
    assert {line["generation"] for line in lines(tmp_path)} == {1, 2}


def test_a_feed_without_rows_is_named() -> None:
    with World(settings(epochs=9), 1, environment={"EDL_TEST_ROWS": "0"}) as world:
        assert world.ended()[0] != 0
        assert "gives no rows" in world.said(Failed)[0].error


class Quadrants:
    """Knows the answers; silent after `silent_from` requests until it `speaks`."""

    def __init__(self) -> None:
        self.speaks = threading.Event()
        self.speaks.set()
        self.silent_from = 1 << 30
        self.asked = 0

    def __call__(self, request: tensors.InferRequest) -> dict[str, Array]:
        self.asked += 1
        if self.asked > self.silent_from:
            self.speaks.wait(DEADLINE_S)
        points = next(iter(request.inputs.values()))
        quadrant = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
        return {"logits": (8.0 * np.eye(CLASSES)[quadrant]).astype(np.float32)}


def assert_soft_loss_halved(told: list[Progress]) -> None:
    """Compare the losses of the first step and of the last seven, among them an epoch's last one.

    A rank may train a single row of a step, so the loss of one report says little. All ranks report
    the last step of an epoch.
    """
    assert set(told[-1].losses) == {"hard", "soft", "total"}
    newest = max(report.step for report in told)
    last = [report for report in told if report.step > newest - 7]
    first = [report for report in told if report.step == 1]
    assert _soft_loss(last) < _soft_loss(first) / 2


def _soft_loss(reports: list[Progress]) -> float:
    rows = [report.rows for report in reports]
    return float(np.average([report.losses["soft"] for report in reports], weights=rows))


@pytest.fixture
def teacher() -> Iterator[tuple[ScriptedTeacher, Quadrants]]:
    quadrants = Quadrants()
    server = ScriptedTeacher(quadrants)
    yield server, quadrants
    quadrants.speaks.set()
    server.stop()


def test_a_silent_teacher(teacher: tuple[ScriptedTeacher, Quadrants], tmp_path: Path) -> None:
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
        assert_soft_loss_halved(told)
        assert told[-1].teachers == 1
        world.crew.leave()
        assert world.ended() == {0: EXIT_AGAIN, 1: EXIT_AGAIN}
        assert all(left.safe for left in world.said(Left))
        assert owner.newest_step() == world.said(Left)[0].step
    whole = max(line["epoch"] for line in lines(tmp_path))  # the one that was left
    assert whole >= 2
    assert_each_once(tmp_path, [96] * whole, but=whole)


def test_a_job_of_pytorch_learns_from_teachers(
    teacher: tuple[ScriptedTeacher, Quadrants], tmp_path: Path
) -> None:
    spec, address = str(JOB.with_stem("torch_job")), teacher[0].address
    job = settings(job_file=spec, epochs=8, teachers=(address,), id_log=str(tmp_path))
    with World(job, 2, environment={"EDL_TEST_TEACH": "1"}) as world:
        assert world.ended() == {0: 0, 1: 0}
        assert_soft_loss_halved([p for p in world.said(Progress) if p.losses])
    assert_each_once(tmp_path, [96] * 8)


def test_epochs_of_random_sizes_end_cleanly(tmp_path: Path, rng: random.Random) -> None:
    sizes = [rng.randrange(1, 130) for _ in range(30)]
    job = settings(epochs=len(sizes), total_batch=13, id_log=str(tmp_path), shard_rows=3)
    told = {"EDL_TEST_ROWS": ",".join(map(str, sizes))}
    with World(job, 3, environment=told) as world:
        assert world.ended() == {0: 0, 1: 0, 2: 0}
        assert len(world.said(Finished)) == 3
    assert_each_once(tmp_path, sizes)
