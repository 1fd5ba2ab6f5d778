"""The command `edl profile`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...proto.datatypes import FREE, TensorSpec, dtype_of
from ...runtime.structured_option import Given, Key, StructuredOption
from ...scheduler.cluster import DeviceRate
from ...teacher.options import BackendKeys

if TYPE_CHECKING:
    from ..plan.job_file import Profile
    from .step_timings import StepTimings


Job = Annotated[
    Path | None, typer.Option(metavar="JOB.py", help="The Python job file of 'edl student train'.")
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Any training step, instead of --job: the function returns a pair, the batches of an"
        " epoch and a function that trains on one batch.",
    ),
]
Model = Annotated[str | None, typer.Option(help="The teacher, as --model of 'edl teacher serve'.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE.yaml", help="Write the profile to this file.")
]


@dataclass(frozen=True, slots=True)
class DeviceKeys:
    """Keys of `--student-on` and of `--teacher-on`."""

    kind: Annotated[
        str, Key("name of its rate, a kind of device in the cluster file; it selects no device.")
    ] = "here"
    device: Annotated[str, Key("cpu, cpu:CORES to bind it to cores, or, for a teacher, gpu:N.")] = (
        "cpu"
    )


BACKEND: Final = StructuredOption("--backend", BackendKeys, first="name", variables=False)
Backend = Annotated[list[Given] | None, BACKEND.option("What runs the teacher.")]
STUDENT_ON: Final = StructuredOption("--student-on", DeviceKeys, first="kind")
TEACHER_ON: Final = StructuredOption("--teacher-on", DeviceKeys, first="kind")
StudentOn = Annotated[
    list[Given] | None, STUDENT_ON.option("Name of the student's rate, and its device.")
]
TeacherOn = Annotated[
    list[Given] | None, TEACHER_ON.option("Name of the teacher's rate, and its device.")
]
Batch = Annotated[
    int | None,
    typer.Option(
        min=1, help="Rows of a batch, if the feed is a data set, or to time only a teacher."
    ),
]


@dataclass(frozen=True, slots=True)
class MeasureKeys:
    """Keys of `--measure`."""

    steps: Annotated[int, Key("steps of the student that are timed.", at_least=5)] = 30
    seconds: Annotated[
        float,
        Key(
            "seconds after which no further step of a model begins; a few steps are always timed.",
            at_least=0,
        ),
    ] = 60.0


MEASURE: Final = StructuredOption("--measure", MeasureKeys, first="steps")
Measure = Annotated[list[Given] | None, MEASURE.option("How long to measure.")]


def profile(
    job: Job = None,
    step: Step = None,
    model: Model = None,
    out: Out = Path("profile.yaml"),
    student_on: StudentOn = None,
    teacher_on: TeacherOn = None,
    batch: Batch = None,
    measure: Measure = None,
    backend: Backend = None,
) -> None:
    """Time a job's step and its teacher on this machine, for 'edl plan'.

    Times the student alone, then the teacher alone, and writes the rates of both
    to a file. The job file of 'edl plan' names this file under 'profiles'.
    """
    from ...runtime.errors import UsageError
    from ...runtime.files import check_writable
    from ..files import write

    if job is None and step is None and model is None:
        raise UsageError("nothing to time: give --job JOB.py (or --step), --model TEACHER, or both")
    if job is not None and step is not None:
        raise UsageError("--step is for a training without a job file: omit --job")
    check_writable(out)
    backend_keys, limits = BACKEND.read(backend), MEASURE.read(measure)
    student, teacher = STUDENT_ON.read(student_on), TEACHER_ON.read(teacher_on)
    step_source = step or (None if job is None else str(job))
    timings = None
    if step_source is not None:
        timings = _time_student(step_source, batch, limits.steps, limits.seconds, student.device)
    rows = batch if timings is None else timings.rows
    bench = None
    if model is not None:
        bench = _time_teacher(model, rows, limits.seconds, teacher.device, backend_keys)
    result = _profile(timings, bench, rows, (student.kind, teacher.kind))
    write(out, result, "measured by `edl profile`; a plan's job file names it under `profiles`")
    devices = {}
    if timings is not None:
        devices["student"] = timings.device
    if bench is not None:
        devices["teacher"] = bench["device"]
    for line in _lines(result, devices):
        typer.echo(line)
    typer.echo(f"profile written: {out}", err=True)


def _time_student(job: str, batch: int | None, steps: int, seconds: float, device: str) -> Any:
    from ...runtime.errors import UsageError
    from ...teacher.config import Device, check_cores
    from .step_timings import time_steps_in_child

    parsed_device = Device.parse(device)
    check_cores([parsed_device])
    if parsed_device.name != "cpu":
        raise UsageError(f"--student-on device={device}: expects cpu or cpu:CORES")
    return time_steps_in_child(job, batch, steps, seconds, parsed_device.cores, _say)


def _time_teacher(
    model: str, batch: int | None, seconds: float, device: str, backend: BackendKeys
) -> Any:
    from ...teacher.config import Device, PredictorConfig, check_cores
    from ...teacher.offline import run_offline

    parsed_device = Device.parse(device)
    check_cores([parsed_device])
    config = PredictorConfig(model, backend=backend.name, rate=backend.rate).on(parsed_device)
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if batch is None or size <= batch]
    return run_offline("bench", config, _say, sizes=sizes, runs=20, seconds=seconds)


def _profile(timings: Any, bench: Any, rows: int | None, kinds: tuple[str, str]) -> Profile:
    import platform

    from ..plan.job_file import Profile

    measured = {"machine": platform.processor() or platform.machine()}
    result = Profile(batch=rows, measured=measured)
    if timings is not None:
        steps = f"{len(timings.whole_s)} steps of {timings.rows} rows on {timings.device}"
        measured["student"] = f"{steps}, the median"
        if timings.left_out:
            measured["left out"] = f"hints: {', '.join(timings.left_out)}"
        result = replace(
            result,
            student={kinds[0]: student_rate(timings)},
            samples=timings.samples or None,
            sample_bytes=timings.sample_bytes,
            source_samples_per_s=source_rate(timings),
        )
    if bench is not None:
        measured["teacher"] = f"{bench['model']} on {bench['device']}, {bench['threads']} threads"
        measured["content_id"] = bench["content_id"]
        teacher = {kinds[1]: teacher_rate(bench["rows"], rows)}
        result = replace(result, teacher=teacher, label_bytes=label_bytes(bench["outputs"]))
    return result


def _lines(result: Profile, devices: Mapping[str, str]) -> list[str]:
    from ...scheduler.rates import teachers_needed

    lines, rows = [], result.batch or 1
    times = {}
    for role, symbol, rates in (
        ("student", "t_s", result.student),
        ("teacher", "t_t", result.teacher),
    ):
        for kind, rate in rates.items():
            times[role] = rate.batch_s(rows) / rows
            at = f", micro-batch {rate.micro_batch}" if rate.micro_batch else f", batch {rows}"
            lines.append(
                f"{symbol} {1000 * times[role]:.4g} ms/sample"
                f" ({1 / times[role]:.4g} samples/s) of the {role}{at}: the rate of {kind!r},"
                f" measured here on {devices[role]}"
            )
    if len(times) == 2:
        needed = teachers_needed(times["teacher"], times["student"])
        word = "teacher" if needed == 1 else "teachers"
        lines.append(f"n = ceil(t_t / t_s) = {needed} {word} for one student")
    return lines


def _say(text: str) -> None:
    typer.echo(text, err=True)


#: Significant digits of a measured time.
DIGITS = 5


def student_rate(steps: StepTimings) -> DeviceRate:
    """Compute the student's rate from the medians of its steps.

    The duration of a step is that of whole batches. Half batches only divide this duration into the
    fixed cost of a batch and the cost of its samples.
    """
    whole_s = statistics.median(steps.whole_s)
    fixed_s, half_rows = 0.0, steps.rows // 2
    if steps.half_s:
        half_s = statistics.median(steps.half_s)
        row_s = (whole_s - half_s) / (steps.rows - half_rows)
        fixed_s = min(max(whole_s - steps.rows * row_s, 0.0), 0.9 * whole_s)
    return DeviceRate(
        seconds_per_sample=_round((whole_s - fixed_s) / steps.rows),
        batch_overhead_s=_round(fixed_s),
        jitter=_round(_relative_deviation(steps.whole_s)),
    )


def teacher_rate(rows: Sequence[Mapping[str, Any]], batch: int | None) -> DeviceRate:
    """Compute the teacher's rate at its best micro-batch.

    Args:
        rows: results of `edl teacher bench`, one for each micro-batch.
        batch: rows of a student's batch, the largest possible micro-batch; None: no limit.
    """
    allowed = [row for row in rows if batch is None or row["batch"] <= batch] or list(rows)
    best = max(allowed, key=lambda row: row["samples_per_s"])
    runs = max(1.0, (batch or best["batch"]) / best["batch"])
    # The 99th percentile of a normal distribution is 2.33 standard deviations above the median. The
    # mean of several runs varies less than one run.
    jitter = max(0.0, best["p99_s"] / best["p50_s"] - 1) / 2.33 / runs**0.5
    return DeviceRate(
        seconds_per_sample=_round(best["p50_s"] / best["batch"]),
        jitter=_round(min(jitter, 1.0)),
        micro_batch=int(best["batch"]),
    )


def source_rate(steps: StepTimings) -> float:
    """Compute the samples per second of the feed."""
    return float(_round(steps.rows / max(statistics.median(steps.source_s), 1e-9)))


def label_bytes(outputs: Sequence[str]) -> float | None:
    """Compute the bytes of all outputs for a sample; None: unknown, as a dimension is free.

    Args:
        outputs: tensor specs as text, see `TensorSpec.parse`.
    """
    total = 0
    for text in outputs:
        spec = TensorSpec.parse(text)
        if FREE in spec.shape[1:]:
            return None
        total += prod(spec.shape[1:]) * dtype_of(spec.datatype).itemsize
    return float(total) or None


def _relative_deviation(seconds: Sequence[float]) -> float:
    """Return the relative standard deviation, estimated from quartiles, which ignore outliers."""
    if len(seconds) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 1.349 / middle


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
