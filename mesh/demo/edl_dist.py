"""EDL-Dist mode: students train with the mesh while a teacher is killed and another one joins."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...distill_reader import DistilReader, ReaderStats, Timeouts
from ...runtime.errors import NoTeacherAvailable
from ...runtime.lifecycle import Periodic, wait_until
from ..cores import on_cores, pin_process
from ..local import LocalMesh, TeacherSpec
from .cpu_cores import CoreAssignment, CpuMeter
from .digits import CLASSES, BatchSource, DigitDataset
from .modes import ModeResult, StudentTraining, distill_loss
from .progress_display import ProgressDisplay, ProgressStage
from .settings import DemoSettings
from .teacher_churn import TeacherChurn, TeacherEvent

SERVICE = "digits"
JOB = "demo"
#: Longest wait for teachers, in seconds.
TEACHERS_TIMEOUT_S = 30.0
POLL_S = 0.05
#: Batches between samples of the buffer, and between samples of CPU times.
SAMPLE_EVERY_BATCHES = 5
METER_EVERY_BATCHES = 100
#: Alignment in bytes of the arrays in the reader's buffer.
RECORD_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class BufferSample:
    """State of the reader's buffer at one moment.

    Attributes:
        at_s: seconds since the run began.
        volume_bytes: bytes of labelled batches that wait for the student.
        teachers: number of teachers that the reader sends to.
    """

    at_s: float
    volume_bytes: int
    teachers: int


@dataclass(frozen=True, slots=True)
class EdlDistResult:
    """Result of the EDL-Dist mode.

    Attributes:
        result: the result that every mode has.
        reader: statistics of the reader at the end of the training.
        timeline: the buffer over time.
        events: events of teachers.
        killed: number of teachers that SIGKILL ended.
        added: number of new teachers that joined.
    """

    result: ModeResult
    reader: ReaderStats
    timeline: tuple[BufferSample, ...]
    events: tuple[TeacherEvent, ...]
    killed: int
    added: int


def batch_bytes(settings: DemoSettings) -> int:
    """Return the bytes of one labelled batch in the reader's buffer."""
    rows = settings.batch_size
    # Images, hard labels, number, soft labels.
    fields = (rows * settings.size**2, rows * 8, 8, rows * CLASSES * 4)
    return sum(-(-size // RECORD_ALIGNMENT) * RECORD_ALIGNMENT for size in fields)


def run_edl_dist(
    mesh: LocalMesh,
    spec: TeacherSpec,
    digits: DigitDataset,
    settings: DemoSettings,
    cores: CoreAssignment,
    display: ProgressDisplay,
    stage: ProgressStage,
) -> EdlDistResult:
    """Train all students on one stream of the mesh.

    Args:
        mesh: a coordinator and `settings.teachers` teachers of `spec`, all ready.
        spec: settings of the teachers, including the new one.
        digits: the data set.
        settings: students, steps, thresholds.
        cores: cores of the student, and of its engine and the new teacher.
        display: shows the events of teachers; an exception of `display.check` ends the run.
        stage: shows the number of batches and the reader's state.

    Raises:
        NoTeacherAvailable: the teachers do not join within `TEACHERS_TIMEOUT_S`.
    """
    timeline: list[BufferSample] = []
    trained = 0
    with open_reader(mesh, digits, settings, cores) as reader:
        wait_for_teachers(reader, settings.teachers, display.check)
        teachers = [process.pid for process in mesh.teachers.values()]
        meter = CpuMeter({"teachers": teachers, "mesh": [reader.engine_pid, mesh.coordinator.pid]})
        began = time.monotonic()
        churn = _make_churn(mesh, spec, meter, settings, cores, display.say)
        periodic = Periodic("edl-demo-churn", POLL_S, lambda: churn.update(trained, reader.stats))

        def after_batch(number: int) -> None:
            nonlocal trained
            trained, stats = number, reader.stats
            if number % SAMPLE_EVERY_BATCHES == 0:
                at_s = time.monotonic() - began
                timeline.append(BufferSample(at_s, stats.volume_bytes, len(stats.teachers)))
            if number % METER_EVERY_BATCHES == 0:
                meter.sample()
            stage.note(
                f"{len(stats.teachers)} teachers, buffer {stats.volume_bytes / 1024:.0f} KiB,"
                f" resends {stats.resends + stats.hedges}"
            )
            stage.reach(number)

        periodic.start()
        try:
            training = StudentTraining(
                "edl_dist", iter(reader), distill_loss(settings), digits, settings
            )
            training.run(settings.students, after_batch)
            meter.sample()
            stats = reader.stats
            # On a slow machine the training may end before the new teacher joins.
            wait_until(
                lambda: not churn.replacement_pending, TEACHERS_TIMEOUT_S, POLL_S, display.check
            )
        finally:
            periodic.stop()
    result = replace(
        training.result,
        teacher_core_s=meter.seconds("teachers"),
        other_core_s=meter.seconds("mesh"),
        starved_s=stats.starved_s,
        resends=stats.resends + stats.hedges,
    )
    events = tuple(churn.events)
    joined = sum(event.kind == "join" for event in events)
    return EdlDistResult(
        result, stats, tuple(timeline), events, _count_killed(mesh, events), joined
    )


def _count_killed(mesh: LocalMesh, events: Sequence[TeacherEvent]) -> int:
    """Return the number of victims that SIGKILL ended."""
    victims = [mesh.teachers[event.teacher] for event in events if event.kind == "kill"]
    return sum(process.wait(TEACHERS_TIMEOUT_S) == -signal.SIGKILL for process in victims)


def _make_churn(
    mesh: LocalMesh,
    spec: TeacherSpec,
    meter: CpuMeter,
    settings: DemoSettings,
    cores: CoreAssignment,
    say: Callable[[str], None],
) -> TeacherChurn:
    def kill(teacher_id: str) -> None:
        meter.sample()
        mesh.kill(teacher_id)

    def start(teacher_id: str) -> None:
        with on_cores(cores.others):
            meter.add("teachers", mesh.start_teacher(teacher_id, spec).pid)

    return TeacherChurn(
        suspend=mesh.suspend,
        resume=mesh.resume,
        kill=kill,
        start=start,
        replacement=f"teacher-{settings.teachers + 1}",
        batches=settings.batches,
        say=say,
    )


@contextmanager
def open_reader(
    mesh: LocalMesh, digits: DigitDataset, settings: DemoSettings, cores: CoreAssignment
) -> Iterator[DistilReader]:
    """Open a reader; its engine runs on the mesh's cores, this process on the student's core."""
    one_batch_bytes = batch_bytes(settings)
    with on_cores(cores.others):
        reader = DistilReader(
            BatchSource(digits, settings),
            service=SERVICE,
            coordinator=mesh.url,
            feeds=[0],
            upper_bytes=settings.upper_batches * one_batch_bytes,
            lower_bytes=settings.lower_batches * one_batch_bytes,
            job=JOB,
            profiles=None,
            # Ask for all teachers at once: adapting n would take half of this short run. Ask for
            # more than exist: the coordinator counts a fast teacher as several, and on a busy
            # machine any teacher may seem fast.
            teachers_min=4 * settings.teachers,
            timeouts=Timeouts(wait_s=TEACHERS_TIMEOUT_S),
        )
    with reader:
        pin_process(cores.student)
        yield reader


def wait_for_teachers(reader: DistilReader, teachers: int, check: Callable[[], None]) -> None:
    """Wait until the reader sends to `teachers` teachers. Raises NoTeacherAvailable."""
    if not wait_until(
        lambda: len(reader.stats.teachers) >= teachers, TEACHERS_TIMEOUT_S, POLL_S, check
    ):
        raise NoTeacherAvailable(
            f"{len(reader.stats.teachers)} of {teachers} teachers joined within"
            f" {TEACHERS_TIMEOUT_S:.0f} s:"
            f" {reader.stats.waiting_for or 'the others were not assigned'}"
        )
