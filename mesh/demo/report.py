"""What the demo found: the table at its end, and the same as JSON."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from .cores import Cores
from .edl_dist import EdlDistResult
from .modes import TITLES, Mode, ModeResult
from .settings import DemoSettings
from .teacher_model import TeacherModel

#: Below this share of its time the student counts as not held up by its teachers.
STARVED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything that the demo found.

    Attributes:
        settings: what was run.
        cores: where it was run.
        teacher: the teacher's model.
        modes: what came of each mode.
        edl_dist: what else is known of the EDL-Dist run.
        seconds: wall time of the whole demo.
    """

    settings: DemoSettings
    cores: Cores
    teacher: TeacherModel
    modes: Mapping[Mode, ModeResult]
    edl_dist: EdlDistResult
    seconds: float

    @property
    def reference_sha256(self) -> str:
        """Hash of the same batches, labelled by the same model in the training process."""
        return self.modes["online"].stream.sha256

    @property
    def gains(self) -> list[float]:
        """Accuracy of EDL-Dist less that of N-training, seed by seed."""
        plain, distilled = self.modes["n_training"].accuracy, self.modes["edl_dist"].accuracy
        return [own - base for own, base in zip(distilled, plain, strict=True)]


def spread(values: Sequence[float]) -> float:
    """Standard deviation of a sample; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def table(report: DemoReport) -> Table:
    """One row per mode."""
    runs = f"{report.settings.seeds} seeds, {report.settings.steps} steps each"
    result = Table(
        title=f"The same student, trained three ways ({runs})",
        caption="core-µs: millionths of a core-second per sample, of the training process, of the"
        " teachers, of the mesh (the reader's engine and the coordinator)",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    result.add_column("mode", no_wrap=True)
    for heading in (
        "accuracy\n%",
        "samples/s\n",
        "student\ncore-µs",
        "teachers\ncore-µs",
        "mesh\ncore-µs",
        "starved\ns",
        "resends\n",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    for mode, title in TITLES.items():
        result.add_row(title, *_cells(report.modes[mode]))
    return result


def caption(report: DemoReport) -> list[str]:
    """What the table means, in sentences."""
    edl, online = report.modes["edl_dist"], report.modes["online"]
    gains = [100 * gain for gain in report.gains]
    same = edl.stream.sha256 == report.reference_sha256
    return [
        f"Soft labels are worth {statistics.mean(gains):+.1f} points of accuracy here"
        f" (seed by seed: {', '.join(f'{gain:+.1f}' for gain in gains)})."
        f"{_how_much_it_means(report.settings)}",
        _where_it_ran(report),
        f"EDL-Dist ran at {edl.samples_per_s / online.samples_per_s:.2f} times the speed of Online."
        f" {_what_held_it_up(edl)}"
        " The core-µs of its teachers include the start of the new one.",
        f"Of {report.edl_dist.reader.yielded} batches {edl.stream.batches} came,"
        f" {edl.stream.duplicates} twice, {edl.stream.out_of_order} out of order; every byte"
        f" {'equals' if same else 'DIFFERS FROM'} what the model gives without the mesh.",
    ]


def as_json(report: DemoReport) -> dict[str, Any]:
    """The whole report, for `--json`."""
    edl = report.edl_dist
    return {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "student_cores": sorted(report.cores.student),
            "other_cores": sorted(report.cores.others),
        },
        "settings": asdict(report.settings),
        "seconds": report.seconds,
        "teacher": {"accuracy": report.teacher.accuracy, "cached": report.teacher.cached},
        "modes": {mode: _mode_json(result) for mode, result in report.modes.items()},
        "gain": {
            "by_seed": report.gains,
            "mean": statistics.mean(report.gains),
            "spread": spread(report.gains),
        },
        "edl_dist": {
            "yielded": edl.reader.yielded,
            "delivered": edl.result.stream.batches,
            "duplicates": edl.result.stream.duplicates,
            "out_of_order": edl.result.stream.out_of_order,
            "teachers_killed": edl.killed,
            "teachers_added": edl.added,
            "resends": edl.result.resends,
            "stream_sha256": edl.result.stream.sha256,
            "reference_sha256": report.reference_sha256,
            "upper_bytes": edl.reader.upper_bytes,
            "lower_bytes": edl.reader.lower_bytes,
            "t_t_seconds": edl.reader.t_t_s,
            "t_s_seconds": edl.reader.t_s_s,
            "needed": edl.reader.needed,
            "starved_seconds": edl.reader.starved_s,
            "blocked_seconds": edl.reader.blocked_s,
            "engine_restarts": edl.reader.engine_restarts,
            "events": [asdict(event) for event in edl.events],
            "timeline": [asdict(moment) for moment in edl.timeline],
        },
    }


def _cells(result: ModeResult) -> list[str]:
    per_sample_us = 1e6 / result.stream.samples
    with_mesh = result.mode == "edl_dist"
    return [
        f"{100 * statistics.mean(result.accuracy):.1f} ± {100 * spread(result.accuracy):.1f}",
        f"{result.samples_per_s:,.0f}",
        f"{result.student_core_s * per_sample_us:.1f}",
        f"{result.teacher_core_s * per_sample_us:.1f}" if result.teacher_core_s else "-",
        f"{result.other_core_s * per_sample_us:.1f}" if with_mesh else "-",
        f"{result.starved_s:.1f}" if with_mesh else "-",
        f"{result.resends}" if with_mesh else "-",
    ]


def _mode_json(result: ModeResult) -> dict[str, Any]:
    samples = result.stream.samples
    return {
        "accuracy": list(result.accuracy),
        "accuracy_mean": statistics.mean(result.accuracy),
        "accuracy_spread": spread(result.accuracy),
        "samples": samples,
        "seconds": result.seconds,
        "samples_per_s": result.samples_per_s,
        "core_seconds_per_sample": {
            "student": result.student_core_s / samples,
            "teachers": result.teacher_core_s / samples,
            "mesh": result.other_core_s / samples,
            "all": result.core_s_per_sample,
        },
        "starved_seconds": result.starved_s,
        "resends": result.resends,
        "stream_sha256": result.stream.sha256,
    }


def _how_much_it_means(settings: DemoSettings) -> str:
    return " So short a training says little." if settings.steps < DemoSettings().steps else ""


def _where_it_ran(report: DemoReport) -> str:
    others = len(report.cores.others)
    if report.cores.student == report.cores.others:
        return "This machine gives one core: student, teachers and mesh share it in every mode."
    return (
        "The student has one core in every mode; Online runs the teacher on that core too, EDL-Dist"
        f" runs its teachers, its engine and the coordinator on {others} other"
        f" {'core' if others == 1 else 'cores'}."
    )


def _what_held_it_up(edl: ModeResult) -> str:
    share = edl.starved_s / edl.seconds
    if share < STARVED_SHARE:
        return "The student set the pace: it hardly ever waited for labels."
    return (
        f"Its teachers set the pace: the student waited for labels {share:.0%} of the time. All of"
        " them share the cores of this one machine."
    )
