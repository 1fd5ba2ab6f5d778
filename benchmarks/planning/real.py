"""Trainings with real models: throughput predicted from each model alone, and measured."""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from ...mesh.cores import children_on
from ...scheduler.cluster import Cluster, DeviceKind, DeviceRate, Distillation
from ...scheduler.pipeline_model import DeviceGroup, PlannedMesh, predict
from ..children import Child
from ..paced.teachers import start_teachers
from ..paper.measured.cores import divided
from ..paper.measured.models import CLASSES, MICRO_BATCH
from ..paper.measured.student import (
    EDL_DIST,
    LABELLING_ALONE,
    N_TRAINING,
    ONLINE,
    SETTLING,
    STEP_ALONE,
)
from ..report import MIN_ROUNDS, interleaved
from ..teachers.models import export_resnet

log = logging.getLogger(__name__)

#: Layers of the teachers' ResNets: one slower than the student's step, one faster.
TEACHERS: Final = (50, 18)
_ROWS: Final = 8
_QUICK_ROWS: Final = 2
_CORE: Final = "core"
_PICTURE_BYTES: Final = 3 * 224 * 224 * 4
_LABEL_BYTES: Final = CLASSES * 4

#: Name, predicted samples per second, and measured samples per second of each window.
PredictedAndMeasured = tuple[str, float, list[float]]


def trainings(quick: bool) -> Iterator[PredictedAndMeasured]:
    """Train MobileNetV3-small alone, and with each teacher in its process and through a mesh.

    Args:
        quick: smaller batches.

    Raises:
        ProcessFailed: a process does not start.
    """
    rows = _QUICK_ROWS if quick else _ROWS
    for layers in TEACHERS:
        log.info("real models: MobileNetV3-small with ResNet%d", layers)
        found = _with_teacher(layers, rows)
        yield from found if layers == TEACHERS[0] else found[1:]  # N-training has no teacher


def _with_teacher(layers: int, rows: int) -> list[PredictedAndMeasured]:
    cores, others = divided(1)
    with ExitStack() as stack, children_on(others):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = ("--micro-batch", str(MICRO_BATCH), "--threads", "1")
        [(address, _)] = start_teachers(stack, [options], export_resnet(folder, layers))
        module = "edl.benchmarks.paper.measured.student"
        placed = [",".join(map(str, each)) for each in (cores, others)]
        student = Child(stack, "the student", module, "paddle", layers, rows, *placed, address)
        student.receive()

        def batch_s(way: str, steps: int = 1) -> float:
            return float(student.ask("run", way=way, steps=steps)["wall_s"]) / steps

        ways = (STEP_ALONE, LABELLING_ALONE, N_TRAINING, ONLINE)
        taken = interleaved(*[partial(batch_s, way) for way in ways])
        step, labelling, n_training, online = zip(*taken, strict=True)
        # Not interleaved: between turns, the teacher would label ahead.
        batch_s(EDL_DIST, SETTLING)
        taught = [batch_s(EDL_DIST) for _ in range(MIN_ROUNDS)]
    job = _job(rows, statistics.median(step), statistics.median(labelling))
    mesh = PlannedMesh(_CORE, 1, (DeviceGroup(_CORE, 1.0),), rows)
    cluster = Cluster((DeviceKind(_CORE, count=2),))
    return [
        ("no teacher", rows / job.step_s(_CORE, rows), _rates(rows, n_training)),
        (f"ResNet{layers}, Online", rows / job.online_s(_CORE, rows), _rates(rows, online)),
        (f"ResNet{layers}, mesh", predict(cluster, job, mesh).samples_per_s, _rates(rows, taught)),
    ]


def _job(rows: int, student_s: float, teacher_s: float) -> Distillation:
    """Return the job as a profile describes it: seconds of a batch of each model alone."""
    return Distillation(
        name="real",
        samples=rows * MIN_ROUNDS,
        batch=(rows,),
        student={_CORE: DeviceRate(seconds_per_sample=student_s / rows)},
        teacher={_CORE: DeviceRate(seconds_per_sample=teacher_s / rows)},
        sample_bytes=_PICTURE_BYTES,
        label_bytes=_LABEL_BYTES,
    )


def _rates(rows: int, batches_s: tuple[float, ...] | list[float]) -> list[float]:
    return [rows / seconds for seconds in batches_s]
