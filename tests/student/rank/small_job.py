"""A small job for tests of ranks: two layers, a few hundred rows.

`python small_job.py EPOCHS` trains it by Paddle alone.
Options are environment variables: EDL_TEST_ROWS=rows of each epoch, by turns;
EDL_TEST_STREAM=1 for a feed without ids, and a metric of Paddle's; EDL_TEST_ROW_S=seconds per row;
EDL_TEST_BLOCK=rank:row whose read never ends; EDL_TEST_DUMP=folder where each rank writes its
parameters after each step; EDL_TEST_CRASH=rank:call of the loss that raises; EDL_TEST_PLAIN=1 for a
learning rate that decays and a distillation with no weight; EDL_TEST_TEACH=1 for one by teachers;
EDL_TEST_RATE=rate; EDL_TEST_NO_MEMORY=1 for a system that gives no memory for snapshots.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import paddle

from edl.distill_reader import Batched
from edl.distill_reader.sources import source_of
from edl.scheduler.students.shards import RankShard
from edl.student.job.distill import Distill

ROWS = [int(rows) for rows in os.environ.get("EDL_TEST_ROWS", "96").split(",")]
BATCH = 16
ROW_S = float(os.environ.get("EDL_TEST_ROW_S", "0"))
calls = 0
if os.environ.get("EDL_TEST_NO_MEMORY"):
    os.posix_fallocate = Mock(side_effect=OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
schedule: Any = None


def rank() -> int:
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def option(name: str) -> tuple[int, int]:
    """A pair "rank:number" of the environment."""
    first, _, second = os.environ.get(name, "-1:0").partition(":")
    return int(first), int(second)


class Rows:
    """Points of a plane, labelled by the quadrant that they lie in."""

    def __init__(self) -> None:
        self.set_epoch(0)
        self._read = 0
        self._points = np.random.default_rng(7).normal(size=(max(ROWS), 8)).astype(np.float32)

    def set_epoch(self, epoch: int) -> None:
        self._rows = ROWS[epoch % len(ROWS)]

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        self._read += 1
        time.sleep(ROW_S)
        if option("EDL_TEST_BLOCK") == (rank(), self._read):
            threading.Event().wait()
        point = self._points[number]
        return point, np.int64(2 * (point[0] > 0) + (point[1] > 0))


class Student(paddle.nn.Layer):  # type: ignore[misc]  # Paddle has no types here
    def __init__(self) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(8, 16)
        self.unused = paddle.nn.Linear(3, 3)
        self.signs = paddle.nn.Embedding(8, 16, sparse=True)
        self.last = paddle.nn.Linear(16, 10)

    def forward(self, points: Any) -> Any:
        which = (points[:, 2:5] > 0).astype("int64") @ paddle.to_tensor([1, 2, 4])
        return self.last(paddle.tanh(self.first(points) + self.signs(which)))


def model() -> Any:
    return Student()


def loss(outputs: Any, labels: Any) -> Any:
    global calls
    calls += 1
    who, call = option("EDL_TEST_CRASH")
    if who == rank() and calls == call:
        raise RuntimeError("the loss has had enough")
    return paddle.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    global schedule
    rate: Any = float(os.environ.get("EDL_TEST_RATE", "0.1"))
    if os.environ.get("EDL_TEST_PLAIN"):
        rate = schedule = paddle.optimizer.lr.ExponentialDecay(0.1, 0.9)
    made = paddle.optimizer.Momentum(rate, parameters=parameters, weight_decay=0.01)
    (signs,) = (one for one in parameters if one.name.startswith("embedding"))
    plain_step, steps = made.step, itertools.count(1)

    def step() -> None:
        assert signs.grad.is_selected_rows(), "a sparse gradient became dense"
        plain_step()
        if folder := os.environ.get("EDL_TEST_DUMP"):
            file = Path(folder) / f"rank{rank()}-step{next(steps)}.npz"
            np.savez(file, *(one.numpy() for one in parameters))

    made.step = step
    return made


class Stream:
    """Batches without ids, of which each rank has every so-many-th."""

    def __init__(self, part: tuple[int, int] = (0, 1)) -> None:
        self._part = part

    def shard(self, rank: int, world_size: int) -> Stream:
        return Stream((rank, world_size))

    def __iter__(self) -> Any:
        first, step = self._part
        for number, batch in enumerate(Batched(Rows(), BATCH)):
            if number % step == first:
                yield batch


def feed(split: str) -> Any:
    if os.environ.get("EDL_TEST_STREAM"):
        return Stream()
    return Batched(Rows(), BATCH, shuffle=split == "train")


def hits(outputs: Any, labels: Any) -> Any:
    return (outputs.argmax(-1) == labels).astype("float32").mean()


def metrics() -> dict[str, Any]:
    found: dict[str, Any] = {"accuracy": hits}
    if os.environ.get("EDL_TEST_STREAM"):
        found["by_paddle"] = paddle.metric.Accuracy()
    return found


def distill() -> Distill | None:
    if os.environ.get("EDL_TEST_TEACH"):
        return Distill(service="quadrants", fetches=["logits"], temperature=2.0)
    if os.environ.get("EDL_TEST_PLAIN"):
        return Distill(service="nobody", alpha=1.0, beta=0.0)
    return None


def on_scale(old: int, new: int) -> None:
    print(f"on_scale({old}, {new})", flush=True)


def train_plainly(epochs: int) -> None:
    source = source_of(feed("train"), RankShard(), 0)
    paddle.seed(0)
    student = model()
    momentum = optimizer(student.parameters())
    student.train()
    for epoch in range(epochs):
        reading = source.begin(epoch, 0, None)
        while (batch := next(reading, None)) is not None:
            points, labels = batch
            loss(student(paddle.to_tensor(points)), paddle.to_tensor(labels)).backward()
            momentum.step()
            momentum.clear_grad()
            schedule.step()


if __name__ == "__main__":
    train_plainly(int(sys.argv[1]))
