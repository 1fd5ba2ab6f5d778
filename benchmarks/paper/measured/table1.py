"""Table 1 on this machine: a real student on cores, a teacher on a GPU or emulated as a P4."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from ....mesh.cores import available_cores, on_cores
from ...children import Child, divided_cores
from ...paced.teachers import PICTURES, paced, start_teachers
from ...report import BenchmarkReport, Estimate, Goal, Row, interleaved
from .models import framework
from .student import (
    EDL_DIST,
    LABELLING_ALONE,
    N_TRAINING,
    ONLINE,
    SETTLING,
    STEP_ALONE,
    WAYS,
    train,
)

log = logging.getLogger(__name__)

#: Way -> seconds of a step in each round.
Seconds = Mapping[str, Sequence[float]]

#: Least rate of EDL-Dist relative to N-training.
OF_N_TRAINING: Final = 0.97
#: Greatest relative deviation of the speedup of EDL-Dist over Online from the expected one, which
#: follows from the step times of each model alone: (student + teacher) / student.
NEAR: Final = 0.10
#: Layers of the teacher's ResNet.
_LAYERS: Final = 50
_ROWS: Final = 64
_QUICK_ROWS: Final = 8
_CORES: Final = (1, 2, 4, 8, 16)
_CUDA_TEACHER: Final = "edl.benchmarks.paper.measured.models:resnet50"


def measure(quick: bool, p4_rate: float, *, on_gpu: bool) -> BenchmarkReport:
    """Measure the three ways and each model alone, interleaved.

    With a GPU the teacher is a real one in PyTorch, and the student has 1 to 16 cores. Otherwise
    the teacher is emulated at the rate of a P4, and the student has one core.

    Args:
        quick: batches of 8 instead of 64.
        p4_rate: images per second that a P4 labels with ResNet50.
        on_gpu: whether the teacher runs on this machine's first GPU.

    Raises:
        UsageError: no framework for the student is installed.
    """
    rows_of_batch = _QUICK_ROWS if quick else _ROWS
    if on_gpu:
        options: tuple[str, ...] = ("--devices", "gpu:0", "--micro-batch", str(rows_of_batch))
        model, teacher = _CUDA_TEACHER, "ResNet50 on a GPU"
    else:
        options, model = paced(rows_of_batch / p4_rate, rows_of_batch), PICTURES
        teacher = f"emulated: paced at {p4_rate:.0f} img/s, a P4's"
    available = len(available_cores())
    counts = [count for count in _CORES if count <= available] if on_gpu else [1]
    rows: list[Row] = []
    goals: list[Goal] = []
    for count in counts:
        log.info("%d of %d cores train, %s", count, available, teacher)
        seconds = _step_times(count, rows_of_batch, options, model)
        rows += _rows(count, rows_of_batch, teacher, seconds)
        goals += judge(count, seconds)
    return BenchmarkReport(rows, goals)


def _step_times(count: int, rows: int, options: tuple[str, ...], model: str) -> Seconds:
    cores, others = divided_cores(count)
    with ExitStack() as stack:
        with on_cores(others):
            [(address, _)] = start_teachers(stack, [options], model)
        arguments = (framework(), _LAYERS, rows, cores, others, address)
        student = Child(stack, "the student", train, *arguments)
        student.receive()

        def step_s(way: str) -> float:
            if way == EDL_DIST:  # use up batches that were labelled during the turns of other ways
                student.ask("run", way=way, steps=SETTLING)
            return float(student.ask("run", way=way, steps=1)["wall_s"])

        seconds = interleaved(*[partial(step_s, way) for way in WAYS])
        return dict(zip(WAYS, seconds, strict=True))


def _rows(count: int, rows: int, teacher: str, seconds: Seconds) -> list[Row]:
    return [
        {
            "cores": count,
            "way": way,
            "samples_per_s": rows / statistics.median(steps_s),
            "step_s": statistics.median(steps_s),
            "teacher": teacher if way == EDL_DIST else "",
        }
        for way, steps_s in seconds.items()
    ]


def judge(count: int, seconds: Seconds) -> list[Goal]:
    name = f"{count} core{'s' * (count > 1)}"
    n_s, online_s, edl_s, alone_s, label_s = (seconds[way] for way in (
        N_TRAINING, ONLINE, EDL_DIST, STEP_ALONE, LABELLING_ALONE
    ))  # fmt: skip
    of_n = Estimate.of_ratio(n_s, edl_s)
    gains = [online / edl for online, edl in zip(online_s, edl_s, strict=True)]
    expected = [(step + label) / step for step, label in zip(alone_s, label_s, strict=True)]
    deviation = Estimate.of_ratio(gains, expected)
    title = f"{name}: EDL-Dist / Online, of expected {statistics.median(expected):.3g}"
    return [
        Goal.judge(f"{name}: EDL-Dist / N-training", of_n, ">=", OF_N_TRAINING),
        Goal.judge(title, deviation, ">=", 1 - NEAR),
        Goal.judge(title, deviation, "<=", 1 + NEAR),
    ]
