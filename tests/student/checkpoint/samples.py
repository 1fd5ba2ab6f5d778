"""Contents whose numbers all follow from the step, and places that save when a test lets them."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import fsspec
import ml_dtypes
import numpy as np

from edl.student.checkpoint import (
    Checkpoint,
    Contents,
    Persister,
    Repository,
    SnapshotOwner,
    SnapshotWriter,
    open_checkpoint,
)
from edl.student.checkpoint.capture import TrainingObjects, capture, restore
from edl.student.checkpoint.repository import HistoryFence
from edl.tests.waiting import DEADLINE_S, wait_until

#: Floats of the largest array.
SIZE = 64 * 1024


def contents_of(step: int, size: int = SIZE) -> Contents:
    """What `check` knows again."""
    return Contents(
        step,
        world=2,
        tensors={
            "model/fc.weight": np.full((4, size // 4), step, np.float32),
            "model/fc.bias": np.full(7, step % 200, ml_dtypes.bfloat16),
            "model/mean": np.asarray(step / 4, np.float64),
            "optimizer/fc.weight:moment": np.full(size, step + 0.5, np.float32),
            "optimizer/empty": np.zeros((0, 3), np.int64),
            "optimizer/strided": np.arange(step, step + 24, dtype=np.int32)[::2].reshape(3, 4).T,
        },
        state={"epoch": step // 10, "trained": {"0": [[0, step]]}, "ranks": [{"rank": 0}, None]},
    )


def check(contents: Contents, size: int = SIZE) -> None:
    """Fails where a bit is not that of `contents_of` its step."""
    wanted = contents_of(contents.step, size)
    assert contents.world == wanted.world
    assert contents.state == wanted.state
    assert contents.tensors.keys() == wanted.tensors.keys()
    for name, array in wanted.tensors.items():
        got = contents.tensors[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(got, array, err_msg=name)


def train(trained: TrainingObjects, steps: int) -> list[float]:
    """The losses; data, dropout and a coin draw from all three generators."""
    losses, rate = [], trained.framework.learning_rate(trained.optimizer)
    for step in range(steps):
        x = np.random.rand(6, 4).astype("float32") + random.random()
        loss = (trained.model(trained.framework.tensor(x)) ** 2).mean()
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.clear_grad()
        rate.step()
        if step % 2:
            rate.evaluated(1.0)
        losses.append(loss.item())
    return losses


def same(one: Contents, other: Contents) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        np.array_equal(array, other.tensors[name]) and array.dtype == other.tensors[name].dtype
        for name, array in one.tensors.items()
    )


def check_training_continues(
    make: Callable[[], TrainingObjects],
    folder: Path,
    change: Callable[[TrainingObjects], None] = lambda trained: None,
) -> None:
    """Through the disk, into objects that were made anew, and into some that have trained."""
    first, fresh, used = make(), make(), make()
    train(first, 5)
    change(first)
    taken = capture(first, step=5, world=1, state={"epoch": 2})
    contents = open_checkpoint(Repository(str(folder)).save(taken).location)
    wanted = train(first, 6)
    assert contents.state["epoch"] == 2
    train(used, 2)
    for other in (fresh, used, first):
        restore(other, contents)
        again = capture(other, step=5, world=1, state={"epoch": 2})
        assert same(again, contents)
        assert again.state == contents.state
        assert train(other, 6) == wanted


def check_names_of_live_arrays(trained: TrainingObjects, names: set[str], count: int) -> None:
    """So a save on a CPU copies once."""
    train(trained, 1)
    live = capture(trained, step=0, world=1, state={})
    assert names <= live.tensors.keys()
    assert len(live.tensors) == count
    copied = live.copied()
    train(trained, 1)
    assert not same(live, copied)
    assert same(live, capture(trained, step=1, world=1, state={}))


def check_changed_rate(
    make: Callable[[], TrainingObjects], before: TrainingObjects, *changed: str
) -> None:
    """Continue a training `before` with the rates of `make`, as if it had had them before, too."""
    job, expected = make(), make()
    train(before, 5)
    train(expected, 5)
    contents = capture(before, step=5, world=1, state={}).copied()
    rate = job.framework.learning_rate(job.optimizer)
    assert rate.is_kept(changed)
    rate.advance(5)
    restore(job, contents, changed=changed)
    assert same(capture(job, step=5, world=1, state={}), contents)
    for _ in range(6):
        assert job.optimizer.get_lr() == expected.optimizer.get_lr()
        train(job, 1)
        train(expected, 1)


def save_until_killed(way: str, where: str, step: int, told: Connection) -> None:
    """Save to a place on the disk, or to the memory of snapshots; tell each step that is saved."""
    disk = way == "disk"
    save = Repository(where, keep=3).save if disk else SnapshotWriter(where.split(",")).write
    for number in itertools.count(step):
        save(contents_of(number))
        told.send(number)


def newest_step(place: object) -> int | None:
    found = Repository(str(place)).newest_valid()
    return None if found is None else found.step


def damage(checkpoint: Checkpoint, file: str, change: Callable[[bytes], bytes | None]) -> None:
    """Change a file of a checkpoint behind the repository's back; None removes it."""
    fs, path = fsspec.core.url_to_fs(f"{checkpoint.location}/{file}")
    changed = change(fs.cat_file(path))
    if changed is None:
        fs.rm(path)
    else:
        fs.pipe_file(path, changed)


def flip(data: bytes, at: int = -1, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


class GatedRepository(Repository):
    """Reads and writes while its gate is open; raises `fails` instead of writing.

    Attributes:
        verified, began: steps of what was to be verified, and to be written.
    """

    def __init__(self, url: str, keep: int = 3) -> None:
        super().__init__(url, keep)
        self.gate = threading.Event()
        self.verified: list[int] = []
        self.began: list[int] = []
        self.fails: Exception | None = None

    def verify(self, checkpoint: Checkpoint) -> None:
        self.verified.append(checkpoint.step)
        assert self.gate.wait(DEADLINE_S)
        super().verify(checkpoint)

    def write(
        self, contents: Contents, fence: HistoryFence | None = None, name: str = ""
    ) -> Checkpoint:
        self.began.append(contents.step)
        assert self.gate.wait(DEADLINE_S)
        if self.fails is not None:
            raise self.fails
        return super().write(contents, fence, name)


def persist(persister: Persister) -> Checkpoint | None:
    """Request a write of the newest snapshot, and wait; None: there is none, or it failed."""
    persister.wake()
    wait_until(lambda: persister.on_disk or persister.problem)
    return persister.newest if persister.on_disk else None


@contextmanager
def persisting(repository: Repository) -> Iterator[tuple[Persister, SnapshotWriter]]:
    """A persister that runs, and the writer of its snapshots."""
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        persister = Persister(owner, repository, retry_base_s=0.01)
        try:
            yield persister, writer
        finally:
            if isinstance(repository, GatedRepository):
                repository.gate.set()
            persister.stop(DEADLINE_S)
