"""Accuracy of students alone, with steady teachers, and with teachers that are killed and replaced.

A student is trained for each seed in each of five ways, always on the same batches: with hard
labels alone (N-training); with the teacher in the student's process (Online); through a mesh with
steady teachers; through a mesh in which teachers are killed (SIGKILL) and new ones join; without
teachers, from the label store that the third way filled. The teacher learns from all labels, the
students from few. Differences are compared seed by seed.

The digits of scikit-learn are always available. `--set data=FOLDER` names a folder that contains,
at any depth, the four IDX files of MNIST (or `--set download=on` lets Paddle fetch them), and
reviews in `pos.txt` and `neg.txt`.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ..runtime.errors import UsageError
from ..student.frameworks import FrameworkName
from .distillation import reviews, vision
from .distillation.paired_statistics import Paired
from .distillation.picture import AccuracyPanel, draw
from .distillation.task import Task
from .distillation.training_ways import TITLES, WAYS, DistillationOutcome, Way, train_all_ways
from .report import BenchmarkReport, Goal, Row

log = logging.getLogger(__name__)

SEEDS: Final = 10
QUICK_SEEDS: Final = 2
#: Level of the paired tests: teachers must help significantly; churn must make no such difference.
P: Final = 0.05


def run(
    quick: bool,
    data: Path | None = None,
    picture: Path | None = None,
    seeds: int | None = None,
    download: bool = False,
    task: str | None = None,
    framework: FrameworkName = "paddle",
) -> BenchmarkReport:
    """Train all ways of all tasks; return a row for each task and way.

    Args:
        quick: train two students for a few steps: too little to compare accuracies.
        data: folder with the data of MNIST and of the reviews.
        picture: PNG file to draw.
        seeds: students for each way.
        download: let Paddle fetch MNIST.
        task: name of the only task to run; None: all.
        framework: framework of the students; the teachers are Paddle's.

    Raises:
        UsageError: `data`, `picture` or `task` is wrong, or MNIST cannot be fetched.
    """
    if picture is not None and not picture.parent.is_dir():
        raise UsageError(f"there is no directory {picture.parent} to write {picture.name} to")
    count = seeds or (QUICK_SEEDS if quick else SEEDS)
    rows: list[Row] = []
    goals: list[Goal] = []
    panels: list[AccuracyPanel] = []
    found = list(_tasks(count, data, quick=quick, download=download))
    if framework == "torch":
        found = [one for each in found if (one := each.in_torch()) is not None]
    if task is not None and task not in [one.name for one in found]:
        raise UsageError(
            f"there is no task {task!r} with that data; there are: "
            + ", ".join(one.name for one in found)
        )
    for one in found:
        if task not in (None, one.name):
            continue
        log.info("%s: %s", one.name, one.about)
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="edl-accuracy-") as folder:
            teacher, outcomes = train_all_ways(one, Path(folder))
        log.info("%s took %.0f s", one.name, time.monotonic() - began_s)
        rows += [_row(one, way, teacher.accuracy, outcomes) for way in WAYS]
        goals += judge(one, outcomes)
        panels.append(AccuracyPanel(f"{one.name}, {count} seeds", teacher.accuracy, outcomes))
    if picture is not None:
        draw(panels, picture)
    return BenchmarkReport(rows, goals)


def _tasks(seeds: int, data: Path | None, *, quick: bool, download: bool) -> Iterator[Task]:
    if data is not None and not data.is_dir():
        raise UsageError(f"--set data=: there is no folder {str(data)!r}")
    found: list[Task | None] = [vision.digits(seeds, quick=quick)]
    folder = vision.download_mnist() if download else data
    if folder is not None:
        found.append(vision.mnist(folder, seeds, quick=quick))
    if data is not None:
        found.append(reviews.reviews(data, seeds, quick=quick))
    if data is not None and found[1:] == [None] * len(found[1:]):
        raise UsageError(
            f"in {data} there is neither MNIST ({', '.join(vision.IDX_FILES)}, or with"
            f" .gz) nor reviews ({', '.join(reviews.FILES)})"
        )
    for task in found:
        if task is not None:
            yield task


def _row(task: Task, way: Way, teacher: float, outcomes: Mapping[Way, DistillationOutcome]) -> Row:
    own = outcomes[way]
    points = [100 * value for value in own.accuracy]
    against = _points(own, outcomes["n_training"])
    return {
        "task": task.name,
        "way": TITLES[way],
        "accuracy": statistics.mean(points),
        "sd": statistics.stdev(points),
        "above N": against.mean,
        "95 %": f"{against.low:+.2f} .. {against.high:+.2f}",
        "p": against.p,
        "by seed": " ".join(f"{value:.2f}" for value in points),
        "teacher": 100 * teacher,
        "killed": own.killed,
        "joined": own.joined,
        "from store": own.from_store,
        "seconds": own.result.seconds,
        # Hash of the inputs, hard and soft labels of the students: equal only for equal bits.
        "stream": own.result.stream.sha256[:12],
    }


def judge(task: Task, outcomes: Mapping[Way, DistillationOutcome]) -> list[Goal]:
    """Return the goals of one task.

    Args:
        task: the task.
        outcomes: the outcome of each way; "n_training", "steady", "churn", "offline" are used.
    """
    gain = _points(outcomes["steady"], outcomes["n_training"])
    noise = statistics.stdev(100 * value for value in outcomes["steady"].accuracy)
    churn = _points(outcomes["churn"], outcomes["steady"])
    events = min(outcomes["churn"].killed, outcomes["churn"].joined)
    named: Sequence[Goal] = (
        # The test is two-sided: a significant loss must fail.
        Goal.judge(
            f"{task.name}: EDL-Dist above N-training, p", gain.p if gain.mean > 0 else 1.0, "<=", P
        ),
        Goal.judge(f"{task.name}: churn against steady, p", churn.p, ">=", P),
        Goal.judge(f"{task.name}: churn against steady, points", abs(churn.mean), "<=", noise),
        Goal.judge(f"{task.name}: teachers killed, and new ones joined", events, ">=", 1),
        Goal.judge(
            f"{task.name}: offline, part from the store", outcomes["offline"].from_store, "==", 1
        ),
    )
    return list(named)


def _points(a: DistillationOutcome, b: DistillationOutcome) -> Paired:
    return Paired.of([100 * x for x in a.accuracy], [100 * x for x in b.accuracy])
