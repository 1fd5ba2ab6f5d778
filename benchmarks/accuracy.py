"""Accuracy of students alone, with steady teachers, and with teachers that are killed and replaced.

A student is trained for each seed in each of five ways, always on the same batches: with hard
labels alone (N-training); with the teacher in the student's process (Online); through a mesh with
steady teachers; through a mesh in which teachers are killed (SIGKILL) and new ones join; without
teachers, from the label store that the third way filled. The teacher learns from all labels, the
students from few. Differences are compared seed by seed.

The digits of scikit-learn are always available. `--set data=FOLDER` names a folder that contains,
at any depth, the four IDX files of MNIST, reviews in `pos.txt` and `neg.txt`, or both. With
`--set download=on`, Paddle fetches MNIST.
"""

from __future__ import annotations

import logging
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ..runtime.errors import UsageError
from ..runtime.files import check_writable
from ..student.frameworks import FrameworkName
from .distillation import reviews, vision
from .distillation.task import Task
from .distillation.training_ways import TITLES, WAYS, DistillationOutcome, Way, train_all_ways
from .paper.picture import save
from .report import BenchmarkReport, Goal, Row

log = logging.getLogger(__name__)

SEEDS: Final = 10
QUICK_SEEDS: Final = 2
#: Significance level of the paired tests: teachers must make a significant difference, churn none.
P: Final = 0.05

_COLOURS: dict[Way, str] = {
    "n_training": "#8c8c8c",
    "online": "#d98c3f",
    "steady": "#2f6fb0",
    "churn": "#c0392b",
    "offline": "#2e8b57",
}
_LABELS: dict[Way, str] = {
    "n_training": "N-training",
    "online": "Online",
    "steady": "EDL-Dist,\nsteady",
    "churn": "EDL-Dist,\nchurn",
    "offline": "offline\nstore",
}


@dataclass(frozen=True, slots=True)
class Paired:
    """Statistics of the differences of pairs.

    Attributes:
        mean: mean difference.
        low: lower end of the 95 % interval of the mean, by Student's t.
        high: upper end of the interval.
        p: p-value of the two-sided paired t-test of mean 0; 1 if all differences are 0.
    """

    mean: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float]) -> Self:
        """Compare `a[i] - b[i]`.

        Raises:
            ValueError: there are fewer than two pairs, or the lengths differ.
        """
        if len(a) != len(b) or len(a) < 2:
            raise ValueError(f"needs two or more pairs, not {len(a)} and {len(b)} figures")
        differences = [x - y for x, y in zip(a, b, strict=True)]
        mean, spread = statistics.mean(differences), statistics.stdev(differences)
        if spread == 0:  # the test would divide by 0
            return cls(mean, mean, mean, 1.0 if mean == 0 else 0.0)
        from scipy import stats

        half = float(stats.t.ppf(0.975, len(a) - 1)) * spread / math.sqrt(len(a))
        p = float(stats.ttest_rel(a, b).pvalue)
        return cls(mean, mean - half, mean + half, p)


@dataclass(frozen=True, slots=True)
class AccuracyPanel:
    """The panel of one task.

    Attributes:
        title: title above the panel.
        teacher: accuracy of the teacher, 0 to 1.
        outcomes: outcome of each way.
    """

    title: str
    teacher: float
    outcomes: Mapping[Way, DistillationOutcome]


def run(
    quick: bool,
    data: Path | None = None,
    picture: Path | None = None,
    seeds: int | None = None,
    download: bool = False,
    task: str | None = None,
    framework: FrameworkName = "paddle",
) -> BenchmarkReport:
    """Train the students of all tasks in all ways; return a row for each task and way.

    Args:
        quick: train two students in each way for a few steps: too little to compare accuracies.
        data: folder with the data of MNIST, of the reviews, or of both; None: without these tasks.
        picture: PNG file to draw.
        seeds: students for each way.
        download: let Paddle fetch MNIST, instead of reading it from `data`.
        task: name of the only task to run; None: all.
        framework: framework of the students; the teachers are Paddle's. Tasks without students in
            this framework are left out.

    Raises:
        UsageError: `data`, `picture` or `task` is wrong, or MNIST cannot be fetched.
    """
    if picture is not None:
        import matplotlib  # noqa: F401 - fail now instead of after the work

        check_writable(picture)
    count = seeds or (QUICK_SEEDS if quick else SEEDS)
    rows: list[Row] = []
    goals: list[Goal] = []
    panels: list[AccuracyPanel] = []
    tasks = list(_tasks(count, data, quick=quick, download=download))
    if framework == "torch":
        tasks = [in_torch for each in tasks if (in_torch := each.in_torch()) is not None]
    if task is not None and task not in [each.name for each in tasks]:
        raise UsageError(
            f"there is no task {task!r} with that data; there are: "
            + ", ".join(each.name for each in tasks)
        )
    for each in tasks:
        if task not in (None, each.name):
            continue
        log.info("%s: %s", each.name, each.about)
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="edl-accuracy-") as folder:
            teacher, outcomes = train_all_ways(each, Path(folder))
        log.info("%s took %.0f s", each.name, time.monotonic() - began_s)
        rows += [_row(each, way, teacher.accuracy, outcomes) for way in WAYS]
        goals += judge(each, outcomes)
        panels.append(AccuracyPanel(f"{each.name}, {count} seeds", teacher.accuracy, outcomes))
    if picture is not None:
        draw(panels, picture)
    return BenchmarkReport(rows, goals)


def _tasks(seeds: int, data: Path | None, *, quick: bool, download: bool) -> Iterator[Task]:
    if data is not None and not data.is_dir():
        raise UsageError(f"--set data=: there is no folder {str(data)!r}")
    tasks: list[Task | None] = [vision.digits(seeds, quick=quick)]
    folder = vision.download_mnist() if download else data
    if folder is not None:
        tasks.append(vision.mnist(folder, seeds, quick=quick))
    if data is not None:
        tasks.append(reviews.reviews(data, seeds, quick=quick))
    if data is not None and tasks[1:] == [None] * len(tasks[1:]):
        raise UsageError(
            f"in {data} there is neither MNIST ({', '.join(vision.IDX_FILES)}, or with"
            f" .gz) nor reviews ({', '.join(reviews.FILES)})"
        )
    for task in tasks:
        if task is not None:
            yield task


def _row(task: Task, way: Way, teacher: float, outcomes: Mapping[Way, DistillationOutcome]) -> Row:
    outcome = outcomes[way]
    points = [100 * value for value in outcome.accuracy]
    gain = _paired_points(outcome, outcomes["n_training"])
    return {
        "task": task.name,
        "way": TITLES[way],
        "accuracy": statistics.mean(points),
        "sd": statistics.stdev(points),
        "above N": gain.mean,
        "95 %": f"{gain.low:+.2f} .. {gain.high:+.2f}",
        "p": gain.p,
        "by seed": " ".join(f"{value:.2f}" for value in points),
        "teacher": 100 * teacher,
        "killed": outcome.killed,
        "joined": outcome.joined,
        "from store": outcome.share_from_store,
        "seconds": outcome.result.seconds,
        # Hash of the students' inputs, hard and soft labels: equal only if all bits are equal.
        "stream": outcome.result.stream.sha256[:12],
    }


def judge(task: Task, outcomes: Mapping[Way, DistillationOutcome]) -> list[Goal]:
    """Return the goals of one task.

    Args:
        task: the task.
        outcomes: the outcome of each way; "n_training", "steady", "churn", "offline" are used.
    """
    gain = _paired_points(outcomes["steady"], outcomes["n_training"])
    noise = statistics.stdev(100 * value for value in outcomes["steady"].accuracy)
    churn = _paired_points(outcomes["churn"], outcomes["steady"])
    replaced = min(outcomes["churn"].killed, outcomes["churn"].joined)
    share = outcomes["offline"].share_from_store
    return [
        # The test is two-sided: a significant loss must not meet the goal.
        Goal.judge(
            f"{task.name}: EDL-Dist above N-training, p", gain.p if gain.mean > 0 else 1.0, "<=", P
        ),
        Goal.judge(f"{task.name}: churn against steady, p", churn.p, ">=", P),
        Goal.judge(f"{task.name}: churn against steady, points", abs(churn.mean), "<=", noise),
        Goal.judge(f"{task.name}: teachers killed, and new ones joined", replaced, ">=", 1),
        Goal.judge(f"{task.name}: offline, part from the store", share, "==", 1),
    ]


def _paired_points(a: DistillationOutcome, b: DistillationOutcome) -> Paired:
    """Compare two ways seed by seed, in percentage points."""
    return Paired.of([100 * x for x in a.accuracy], [100 * x for x in b.accuracy])


def draw(panels: Sequence[AccuracyPanel], path: Path) -> None:
    """Write the chart to `path` as PNG; raise UsageError if the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    save(figure, path)


def _draw(axes: Any, panel: AccuracyPanel) -> None:
    ways = [way for way in WAYS if way in panel.outcomes]
    by_way = [[100 * value for value in panel.outcomes[way].accuracy] for way in ways]
    for seed in zip(*by_way, strict=True):
        axes.plot(range(len(ways)), seed, color="#cccccc", linewidth=0.8, zorder=1)
    for at, (way, values) in enumerate(zip(ways, by_way, strict=True)):
        mean = sum(values) / len(values)
        axes.plot([at] * len(values), values, "o", color=_COLOURS[way], alpha=0.6)
        axes.plot([at - 0.25, at + 0.25], [mean, mean], color=_COLOURS[way], linewidth=3)
        axes.annotate(f"{mean:.2f}", (at + 0.28, mean), va="center", fontsize=8)
    axes.axhline(100 * panel.teacher, color="#444444", linestyle=":", linewidth=1)
    axes.annotate("teacher", (-0.45, 100 * panel.teacher), va="bottom", fontsize=8)
    axes.set_xlim(-0.5, len(ways) - 0.3)
    axes.set_xticks(range(len(ways)), [_LABELS[way] for way in ways], fontsize=8)
    axes.set_ylabel("% of held-out rows right")
    axes.set_title(panel.title, fontsize=9)
