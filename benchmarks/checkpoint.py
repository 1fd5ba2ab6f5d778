"""How long a step waits for a checkpoint, compared with a synchronous save.

Both times are of the same network and optimizer (Momentum). *Blocking* is the time for which a step
waits: finding the arrays and copying them into the supervisor's memory. *Synchronous* is the time
for which a step would wait for a save: finding the arrays, writing, checksums, and syncing to the
disk of the temporary folder. The first write to each of the two slots costs more, because its
memory is fresh. One of these writes is in the warm-up round, the other one in the first measured
round.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..student.checkpoint import Contents, Repository, SnapshotOwner, SnapshotWriter
from ..student.checkpoint.capture import TrainingObjects, capture
from ..teacher.backends.paddle import import_paddle
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved

#: Layers, and features of each. The optimizer's state is as large as the parameters.
NETWORKS = {"small": (4, 512), "large": (6, 2048)}
LIMIT_PERCENT = 20.0


def run(quick: bool) -> BenchmarkReport:
    """Return a row for each network, with the median ratio of blocking to synchronous in %."""
    paddle = import_paddle()
    rows: list[Row] = []
    goals: list[Goal] = []
    for name in ("small",) if quick else NETWORKS:
        row, share = _measured(name, _trained(paddle, *NETWORKS[name]))
        rows.append(row)
        goals.append(Goal.judge(f"blocking share, {name} (%)", share, "<=", LIMIT_PERCENT))
    return BenchmarkReport(rows, goals)


def _trained(paddle: Any, layers: int, features: int) -> TrainingObjects:
    """Return a network after one step, so that its optimizer has a state."""
    model = paddle.nn.Sequential(*(paddle.nn.Linear(features, features) for _ in range(layers)))
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    model(paddle.ones([1, features])).mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    return TrainingObjects(model, optimizer)


def _measured(name: str, trained: TrainingObjects) -> tuple[Row, Estimate]:
    with (
        tempfile.TemporaryDirectory(prefix="edl-bench-") as folder,
        SnapshotOwner() as owner,
        SnapshotWriter(owner.keys) as writer,
    ):
        repository = Repository(folder, keep=1)
        nbytes = capture(trained, step=1, world=1, state={}).nbytes
        blocking, synchronous = interleaved(
            partial(_ms, trained, writer.write), partial(_ms, trained, repository.save)
        )
    share = Estimate.of_ratio([100 * ms for ms in blocking], synchronous)
    row: Row = {
        "network": name,
        "mb": nbytes / 1e6,
        "blocking_ms": Estimate.of(blocking).value,
        "synchronous_ms": Estimate.of(synchronous).value,
        **share.columns("share_percent"),
    }
    return row, share


def _ms(trained: TrainingObjects, save: Callable[[Contents], object]) -> float:
    """Return the wall milliseconds of one save, including the capture of the arrays."""
    gc.collect()  # so that none starts during the measurement
    began = time.perf_counter()
    save(capture(trained, step=1, world=1, state={"epoch": 0}))
    return (time.perf_counter() - began) * 1e3
