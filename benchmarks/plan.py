"""Errors of the planner and the simulator, compared with real meshes."""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from ..mesh.cores import on_cores
from ..scheduler.cluster import Cluster, DeviceKind, DeviceRate, Distillation
from ..scheduler.pipeline_model import DeviceGroup, PlannedMesh, predict
from .children import Child, divided_cores
from .paced import configurations
from .paced.teachers import start_teachers
from .paper.measured.models import CLASSES, MICRO_BATCH
from .paper.measured.student import (
    EDL_DIST,
    LABELLING_ALONE,
    N_TRAINING,
    ONLINE,
    SETTLING,
    STEP_ALONE,
    train,
)
from .report import MIN_ROUNDS, BenchmarkReport, Estimate, Goal, Row, interleaved
from .teachers.models import export_resnet

log = logging.getLogger(__name__)

#: Limits of a prediction's error, in percent. PLANNED and SIMULATED: of the planner and of the
#: simulator, for emulated devices. PLANNED_OF_REAL: of the planner, for real models.
PLANNED: Final = 10.0
SIMULATED: Final = 5.0
PLANNED_OF_REAL: Final = 20.0
_WINDOW_S: Final = 0.6
_QUICK_WINDOW_S: Final = 0.2
#: Layers of the teachers' ResNets: one slower than the student's step, one faster.
TEACHERS: Final = (50, 18)
_ROWS: Final = 8
_QUICK_ROWS: Final = 2
_CORE: Final = "core"
_PICTURE_BYTES: Final = 3 * 224 * 224 * 4
_LABEL_BYTES: Final = CLASSES * 4

#: Name, predicted samples per second, and measured samples per second of each window.
PredictedAndMeasured = tuple[str, float, list[float]]


def run(quick: bool) -> BenchmarkReport:
    """Run five meshes of stated rates, and five trainings with real models.

    Args:
        quick: shorter windows, and smaller batches of the real models.
    """
    rows: list[Row] = []
    goals: list[Goal] = []

    def add(
        name: str, devices: str, rates: Sequence[float], **predictions: tuple[float, float]
    ) -> None:
        """Add a row and its goals; `predictions`: predictor -> predicted rate, limit of error."""
        row: dict[str, str | float] = {"mesh": name, "devices": devices}
        row["ran/s"] = statistics.median(rates)
        for predictor in ("planner", "simulator"):
            row[f"{predictor}/s"] = predictions[predictor][0] if predictor in predictions else ""
        rows.append(row)
        for predictor, (predicted, limit) in predictions.items():
            error = error_of(Estimate.of([rate / predicted for rate in rates]))
            goals.append(Goal.judge(f"{name}: error of the {predictor}, %", error, "<=", limit))

    for configuration in configurations.CONFIGURATIONS:
        log.info("stated rates: %s", configuration.name)
        rates = configurations.measured(configuration, _QUICK_WINDOW_S if quick else _WINDOW_S)
        add(
            configuration.name,
            "emulated",
            rates,
            planner=(configurations.planned(configuration), PLANNED),
            simulator=(configurations.simulated(configuration), SIMULATED),
        )
    for name, predicted, rates in _trainings(quick):
        add(name, "real models", rates, planner=(predicted, PLANNED_OF_REAL))
    return BenchmarkReport(rows, goals)


def error_of(ratios: Estimate) -> Estimate:
    """Return the error of a prediction in percent; 0 is exact.

    Args:
        ratios: measured rate / predicted rate, estimated over the windows of one measurement.
    """
    ends = (abs(ratios.low - 1), abs(ratios.high - 1))
    least = 0.0 if ratios.low <= 1 <= ratios.high else min(ends)
    percents = (100 * error for error in (abs(ratios.value - 1), least, max(ends)))
    return Estimate(*(round(percent, 2) for percent in percents))


# --- trainings with real models


def _trainings(quick: bool) -> Iterator[PredictedAndMeasured]:
    """Train MobileNetV3-small without a teacher, and with each teacher, Online and through a mesh.

    Args:
        quick: smaller batches.

    Raises:
        ProcessFailed: a process does not start.
    """
    rows = _QUICK_ROWS if quick else _ROWS
    for layers in TEACHERS:
        log.info("real models: MobileNetV3-small with ResNet%d", layers)
        results = _with_teacher(layers, rows)
        yield from results if layers == TEACHERS[0] else results[1:]  # N-training only once


def _with_teacher(layers: int, rows: int) -> list[PredictedAndMeasured]:
    cores, others = divided_cores(1)
    with ExitStack() as stack, on_cores(others):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = ("--micro-batch", str(MICRO_BATCH), "--threads", "1")
        [(address, _)] = start_teachers(stack, [options], export_resnet(folder, layers))
        student = Child(stack, "the student", train, "paddle", layers, rows, cores, others, address)
        student.receive()

        def batch_s(way: str, steps: int = 1) -> float:
            return float(student.ask("run", way=way, steps=steps)["wall_s"]) / steps

        ways = (STEP_ALONE, LABELLING_ALONE, N_TRAINING, ONLINE)
        step, labelling, n_training, online = interleaved(*[partial(batch_s, way) for way in ways])
        # Not interleaved: the teacher would label ahead while other ways run.
        batch_s(EDL_DIST, SETTLING)
        edl_dist = [batch_s(EDL_DIST) for _ in range(MIN_ROUNDS)]
    job = _job(rows, statistics.median(step), statistics.median(labelling))
    mesh = PlannedMesh(_CORE, 1, (DeviceGroup(_CORE, 1.0),), rows)
    cluster = Cluster((DeviceKind(_CORE, count=2),))
    return [
        ("no teacher", rows / job.step_s(_CORE, rows), _rates(rows, n_training)),
        (f"ResNet{layers}, Online", rows / job.online_s(_CORE, rows), _rates(rows, online)),
        (
            f"ResNet{layers}, mesh",
            predict(cluster, job, mesh).samples_per_s,
            _rates(rows, edl_dist),
        ),
    ]


def _job(rows: int, student_s: float, teacher_s: float) -> Distillation:
    """Return the job as a profile describes it.

    Args:
        rows: rows of a batch.
        student_s: seconds of a batch of the student alone.
        teacher_s: seconds of a batch of the teacher alone.
    """
    return Distillation(
        name="real",
        samples=rows * MIN_ROUNDS,
        batch=(rows,),
        student={_CORE: DeviceRate(seconds_per_sample=student_s / rows)},
        teacher={_CORE: DeviceRate(seconds_per_sample=teacher_s / rows)},
        sample_bytes=_PICTURE_BYTES,
        label_bytes=_LABEL_BYTES,
    )


def _rates(rows: int, batches_s: list[float]) -> list[float]:
    return [rows / seconds for seconds in batches_s]
