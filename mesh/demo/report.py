"""Report of the demo: a table, sentences that explain it, and JSON."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from .cpu_cores import CoreAssignment
from .edl_dist import EdlDistResult
from .models import TeacherModel
from .modes import TITLES, Mode, ModeResult
from .online_all_cores import MODE as ALL_CORES
from .settings import DemoSettings

#: Share of time spent waiting for labels below which the student counts as the bottleneck.
STARVED_SHARE = 0.05
#: Share from which the report mentions time lost to other programs, or a changed speed.
DISTURBED_SHARE = 0.15
NO_OTHER_DEVICE = (
    "A mesh is faster because its teachers have other devices. Here they share the student's, so"
    " expect no more than the speed of Online."
)


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Results of a demo.

    Attributes:
        settings: settings of the run.
        cores: cores of student and mesh.
        teacher: the teacher's model.
        modes: result of each mode.
        edl_dist: further results of the EDL-Dist mode.
        seconds: wall time of the whole demo.
    """

    settings: DemoSettings
    cores: CoreAssignment
    teacher: TeacherModel
    modes: Mapping[Mode, ModeResult]
    edl_dist: EdlDistResult
    seconds: float

    @property
    def reference_sha256(self) -> str:
        """Hash of the stream of Online, with labels computed in the training process."""
        return self.modes["online"].stream.sha256

    @property
    def same_bytes(self) -> bool:
        """Whether the stream of the mesh equals that of Online, byte for byte."""
        return self.modes["edl_dist"].stream.sha256 == self.reference_sha256

    @property
    def step_s(self) -> float:
        """Core-seconds of a student's step in Online, that is t_s for a batch."""
        return self.modes["online"].student_core_s / self.settings.batches

    @property
    def labelling_s(self) -> float:
        """Core-seconds of labelling a batch in Online, that is t_t for a batch."""
        return self.modes["online"].teacher_core_s / self.settings.batches

    @property
    def disturbed_share(self) -> float:
        """Largest share of a mode's time in which other programs used the student's core."""
        shares = [0.0]
        for mode in ("n_training", "online", "edl_dist"):
            result = self.modes[mode]
            own_s = result.student_core_s + result.starved_s
            if mode == "online":
                own_s += result.teacher_core_s
            shares.append(1 - own_s / result.seconds)
        return max(shares)

    @property
    def speed_change(self) -> float:
        """Largest relative difference between modes in the core-seconds of a student's step."""
        costs = [
            self.modes[mode].student_core_s / self.modes[mode].stream.batches
            for mode in ("n_training", "online", "edl_dist")
        ]
        return max(costs) / min(costs) - 1

    @property
    def disturbed(self) -> bool:
        """Whether other programs slowed trainings down so much that speeds mean little."""
        return not self.shared_device and self.disturbed_share >= DISTURBED_SHARE

    @property
    def shared_device(self) -> bool:
        """Whether student and teachers share one core or one GPU."""
        return self.settings.device != "cpu" or self.cores.student == self.cores.others

    @property
    def teachers_at_once(self) -> int:
        """Number of teachers that have their own core."""
        return 0 if self.shared_device else min(self.settings.teachers, len(self.cores.others))

    @property
    def expected_ratio(self) -> float:
        """Upper bound of EDL-Dist's speed relative to Online: (t_s + t_t) / max(t_s, t_t / n).

        1 if student and teachers share one core or one GPU.
        """
        if self.shared_device:
            return 1.0
        slowest_s = max(self.step_s, self.labelling_s / self.teachers_at_once)
        return (self.step_s + self.labelling_s) / slowest_s

    @property
    def ratio_to_online(self) -> float:
        """Throughput of EDL-Dist relative to Online on the student's core."""
        return self.modes["edl_dist"].samples_per_s / self.modes["online"].samples_per_s

    @property
    def ratio_to_n_training(self) -> float:
        """Throughput of EDL-Dist relative to N-training."""
        return self.modes["edl_dist"].samples_per_s / self.modes["n_training"].samples_per_s

    @property
    def gains(self) -> list[float]:
        """Accuracy of EDL-Dist minus that of N-training, for each seed."""
        plain, distilled = self.modes["n_training"].accuracy, self.modes["edl_dist"].accuracy
        return [edl - base for edl, base in zip(distilled, plain, strict=True)]


def sample_std(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def results_table(report: DemoReport) -> Table:
    """Make the table, with a row for each mode."""
    settings = report.settings
    all_cores = ""
    if ALL_CORES in report.modes:
        all_cores = " Online (all): on all cores, only to measure its speed."
    table = Table(
        title="The same student, trained in each mode"
        f" ({settings.students} x {settings.steps} steps of {settings.batch_size} images)",
        caption="±: standard deviation over the seeds. core-ms: core-milliseconds per step of the"
        " training process, of the teachers (including the start of the new one), and of the mesh"
        f" (the reader's engine and the coordinator).{all_cores}",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    online = report.modes["online"]
    table.add_column("mode", no_wrap=True)
    for heading in _cells(online, online):
        table.add_column(heading, justify="right", no_wrap=True)
    for mode, result in report.modes.items():
        table.add_row(TITLES[mode], *_cells(result, online).values())
    return table


def summary_lines(report: DemoReport) -> list[str]:
    """Return sentences that explain the table, one per line."""
    edl = report.modes["edl_dist"]
    gains = [100 * gain for gain in report.gains]
    short = report.settings.steps < DemoSettings().steps
    return [
        _placement(report),
        _expectation(report),
        *_disturbance_notes(report),
        f"EDL-Dist reached {report.ratio_to_online:.2f} times the speed of Online, and"
        f" {report.ratio_to_n_training:.2f} times that of N-training, which has no teacher."
        f" {_bottleneck(edl)}",
        f"Of {report.edl_dist.reader.yielded} batches {edl.stream.batches} arrived,"
        f" {edl.stream.duplicates} twice, {edl.stream.out_of_order} out of order"
        f"{_churn_clause(report.edl_dist)}; their bytes"
        f" {'equal' if report.same_bytes else 'DIFFER FROM'} those of Online.",
        f"Soft labels gain {statistics.mean(gains):+.1f} ± {sample_std(gains):.1f} points of"
        f" accuracy here (by seed: {', '.join(f'{gain:+.1f}' for gain in gains)})."
        + (" Such a short training proves little." if short else ""),
    ]


def as_json(report: DemoReport) -> dict[str, Any]:
    """Return the report as JSON values."""
    edl, settings = report.edl_dist, asdict(report.settings)
    settings["seeds"] = settings.pop("students")  # keep the report's key
    return {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "student_cores": sorted(report.cores.student),
            "other_cores": sorted(report.cores.others),
        },
        "settings": settings,
        "seconds": report.seconds,
        "teacher": {"accuracy": report.teacher.accuracy, "cached": report.teacher.cached},
        "modes": {mode: _mode_json(result) for mode, result in report.modes.items()},
        "gain": {
            "by_seed": report.gains,
            "mean": statistics.mean(report.gains),
            "spread": sample_std(report.gains),
        },
        "expected": {
            "step_seconds": report.step_s,
            "labelling_seconds": report.labelling_s,
            "teachers_at_once": report.teachers_at_once,
            "ratio_to_online": report.expected_ratio,
        },
        "disturbed_share": report.disturbed_share,
        "speed_change": report.speed_change,
        "reached": {
            "ratio_to_online": report.ratio_to_online,
            "ratio_to_n_training": report.ratio_to_n_training,
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


def _cells(result: ModeResult, online: ModeResult) -> dict[str, str]:
    """Return the cells of a row, by heading."""
    per_batch_ms = 1e3 / result.stream.batches
    with_mesh = result.mode == "edl_dist"
    accuracy = "-" if result.mode == ALL_CORES else _accuracy(result.accuracy)
    teacher_ms = f"{result.teacher_core_s * per_batch_ms:.1f}" if result.teacher_core_s else "-"
    return {
        "accuracy\n%": accuracy,
        "images\n/s": f"{result.samples_per_s:,.0f}",
        "ratio to\nOnline": f"{result.samples_per_s / online.samples_per_s:.2f}",
        "student\ncore-ms": f"{result.student_core_s * per_batch_ms:.1f}",
        "teacher\ncore-ms": teacher_ms,
        "mesh\ncore-ms": f"{result.other_core_s * per_batch_ms:.1f}" if with_mesh else "-",
        "starved\ns": f"{result.starved_s:.1f}" if with_mesh else "-",
        "resent\n": f"{result.resends}" if with_mesh else "-",
    }


def _accuracy(values: Sequence[float]) -> str:
    mean = f"{100 * statistics.mean(values):.1f}"
    return f"{mean} ± {100 * sample_std(values):.1f}" if len(values) > 1 else mean


def _mode_json(result: ModeResult) -> dict[str, Any]:
    samples = result.stream.samples
    return {
        "accuracy": list(result.accuracy),
        "accuracy_mean": statistics.mean(result.accuracy),
        "accuracy_spread": sample_std(result.accuracy),
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


def _disturbance_notes(report: DemoReport) -> list[str]:
    if report.disturbed:
        return [
            "Other programs used the student's core for up to"
            f" {report.disturbed_share:.0%} of a training: do not compare speeds; repeat the demo"
            " on an idle machine."
        ]
    if not report.shared_device and report.speed_change >= DISTURBED_SHARE:
        return [
            f"The machine's speed changed by {report.speed_change:.0%} between the trainings"
            " (student core-ms): the ratios are rough. `edl bench demo` alternates between the"
            " modes, a few steps each, so that all of them see the same speeds."
        ]
    return []


def _churn_clause(edl: EdlDistResult) -> str:
    if not edl.killed and not edl.added:
        return ""
    teachers = "teacher" if edl.killed == 1 else "teachers"
    return f", with {edl.killed} {teachers} killed and {edl.added} added"


def _placement(report: DemoReport) -> str:
    if report.settings.device != "cpu":
        return "Student and teachers share one GPU."
    if report.shared_device:
        return "This machine has one core: student, teachers and mesh share it in every mode."
    others = len(report.cores.others)
    others_text = f"{others} other {'core' if others == 1 else 'cores'}"
    return (
        "N-training, Online and the student of EDL-Dist use the same single core. EDL-Dist runs"
        f" its teachers, the reader's engine and the coordinator on {others_text}."
    )


def _expectation(report: DemoReport) -> str:
    if report.settings.device != "cpu":
        return NO_OTHER_DEVICE
    t_s_ms, t_t_ms = 1e3 * report.step_s, 1e3 * report.labelling_s
    times = (
        f"A step of the student takes t_s = {t_s_ms:.1f} ms, and labelling its batch takes"
        f" t_t = {t_t_ms:.1f} ms."
    )
    if report.shared_device:
        return f"{times} {NO_OTHER_DEVICE}"
    n = report.teachers_at_once
    share, at_once = ("t_t", "") if n == 1 else (f"t_t / {n}", f", {n} teachers at once")
    return (
        f"{times} Online does one after the other: t_s + t_t = {t_s_ms + t_t_ms:.1f} ms."
        f" EDL-Dist does both at the same time{at_once}:"
        f" max(t_s, {share}) = {max(t_s_ms, t_t_ms / n):.1f} ms,"
        f" so at most {report.expected_ratio:.2f} times the speed of Online."
    )


def _bottleneck(edl: ModeResult) -> str:
    share = edl.starved_s / edl.seconds
    if share < STARVED_SHARE:
        return "The student was the bottleneck: it hardly ever waited for labels."
    return (
        f"Its teachers were the bottleneck: the student waited for labels {share:.0%} of the time."
        " They share the cores of this machine."
    )
