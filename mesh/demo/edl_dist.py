"""The EDL-Dist run: the students learn through the mesh while its teachers come and go."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...distill_reader import DistilReader, ReaderStats, Timeouts
from ...errors import NoTeacherAvailable
from ...lifecycle import Periodic
from ..cores import children_on, pin_process
from ..local import LocalMesh, TeacherSpec
from .churn import Churn, Event
from .cores import Cores, CpuMeter
from .digits import CLASSES, BatchSource, Digits
from .modes import ModeResult, Training, distill_loss
from .settings import DemoSettings

SERVICE = "digits"
JOB = "demo"
#: How long the reader may be without the teachers that it needs.
GATHER_S = 30.0
POLL_S = 0.05
NOTE_EVERY_BATCHES = 5
METER_EVERY_BATCHES = 100
RECORD_ALIGNMENT = 64

OnBatch = Callable[[int, ReaderStats], None]


@dataclass(frozen=True, slots=True)
class Moment:
    """What the buffer held at one moment.

    Attributes:
        at_s: seconds since the run began.
        volume_bytes: labelled batches that wait for the student.
        teachers: how many the student sends to.
    """

    at_s: float
    volume_bytes: int
    teachers: int


@dataclass(frozen=True, slots=True)
class EdlDistResult:
    """What came of the run.

    Attributes:
        result: as of the other modes.
        reader: its figures at the end.
        timeline: the buffer over time.
        events: what happened to teachers.
        killed: teachers that a SIGKILL ended.
        added: new teachers that the student got.
    """

    result: ModeResult
    reader: ReaderStats
    timeline: tuple[Moment, ...]
    events: tuple[Event, ...]
    killed: int
    added: int


def batch_bytes(settings: DemoSettings) -> int:
    """Bytes that one labelled batch takes in the reader's buffer."""
    rows = settings.batch_size
    fields = (rows * settings.size**2, rows * 8, 8, rows * CLASSES * 4)
    return sum(-(-size // RECORD_ALIGNMENT) * RECORD_ALIGNMENT for size in fields)


def run_edl_dist(
    mesh: LocalMesh,
    spec: TeacherSpec,
    digits: Digits,
    settings: DemoSettings,
    cores: Cores,
    *,
    on_batch: OnBatch,
    say: Callable[[str], None],
    check: Callable[[], None],
) -> EdlDistResult:
    """Train all students in one continuous stream through `mesh`, whose teachers are ready.

    Args:
        mesh: coordinator and `settings.teachers` teachers of `spec`.
        spec: what the new teacher is started with, too.
        digits: the data.
        settings: seeds, steps, thresholds.
        cores: where the student runs, and where its engine and the new teacher do.
        on_batch: called after each batch with their number and the reader's figures.
        say: told of what happens to teachers.
        check: called while waiting; what it raises ends the run.
    """
    with open_reader(mesh, digits, settings, cores) as reader:
        gather(reader, settings.teachers, check)
        meter = _meter(mesh, reader)
        watch = _Watch(on_batch)
        churn = _churn(mesh, spec, meter, settings, cores, say)
        periodic = Periodic(
            "edl-demo-churn", POLL_S, lambda: churn.look(watch.batches, reader.stats)
        )
        periodic.start()
        try:
            training = Training("edl_dist", iter(reader), distill_loss(settings), digits, settings)
            training.run(settings.seeds, lambda number: watch.note(number, reader.stats, meter))
            meter.sample()
            stats = reader.stats
            _await_newcomer(churn, check)
        finally:
            periodic.stop()
    return EdlDistResult(
        result=_with_costs(training.result, meter, stats),
        reader=stats,
        timeline=tuple(watch.timeline),
        events=tuple(churn.events),
        killed=_count_killed(mesh, churn.events),
        added=sum(event.kind == "join" for event in churn.events),
    )


def _with_costs(result: ModeResult, meter: CpuMeter, stats: ReaderStats) -> ModeResult:
    return replace(
        result,
        teacher_core_s=meter.seconds("teachers"),
        other_core_s=meter.seconds("mesh"),
        starved_s=stats.starved_s,
        resends=stats.resends + stats.hedges,
    )


def _meter(mesh: LocalMesh, reader: DistilReader) -> CpuMeter:
    """Counts what teachers, engine and coordinator take of the cores."""
    return CpuMeter(
        {
            "teachers": [process.pid for process in mesh.teachers.values()],
            "mesh": [reader.engine_pid, mesh.coordinator.pid],
        }
    )


def _count_killed(mesh: LocalMesh, events: Sequence[Event]) -> int:
    """Of the teachers that were to be killed, those whose process did end by SIGKILL."""
    victims = [mesh.teachers[event.teacher] for event in events if event.kind == "kill"]
    return sum(process.wait(GATHER_S) == -signal.SIGKILL for process in victims)


class _Watch:
    """Notes what the buffer holds while the students train."""

    def __init__(self, on_batch: OnBatch) -> None:
        self.batches = 0
        self.timeline: list[Moment] = []
        self._on_batch = on_batch
        self._began = time.monotonic()

    def note(self, number: int, stats: ReaderStats, meter: CpuMeter) -> None:
        self.batches = number
        if number % NOTE_EVERY_BATCHES == 0:
            at_s = time.monotonic() - self._began
            self.timeline.append(Moment(at_s, stats.volume_bytes, len(stats.teachers)))
        if number % METER_EVERY_BATCHES == 0:
            meter.sample()
        self._on_batch(number, stats)


def _churn(
    mesh: LocalMesh,
    spec: TeacherSpec,
    meter: CpuMeter,
    settings: DemoSettings,
    cores: Cores,
    say: Callable[[str], None],
) -> Churn:
    def kill(teacher_id: str) -> None:
        meter.sample()
        mesh.kill(teacher_id)

    def start(teacher_id: str) -> None:
        with children_on(cores.others):
            meter.add("teachers", mesh.start_teacher(teacher_id, spec).pid)

    return Churn(
        hold=mesh.suspend,
        resume=mesh.resume,
        kill=kill,
        start=start,
        newcomer=f"teacher-{settings.teachers + 1}",
        batches=settings.batches,
        say=say,
    )


@contextmanager
def open_reader(
    mesh: LocalMesh, digits: Digits, settings: DemoSettings, cores: Cores
) -> Iterator[DistilReader]:
    """The reader, its engine on the mesh's cores, its threads on the student's."""
    one = batch_bytes(settings)
    with children_on(cores.others):
        reader = DistilReader(
            BatchSource(digits, settings),
            service=SERVICE,
            coordinator=mesh.url,
            feeds=[0],
            upper_bytes=settings.upper_batches * one,
            lower_bytes=settings.lower_batches * one,
            job=JOB,
            profiles=None,
            # All from the start, so that a run of seconds does not spend half on finding its n; and
            # more than there are, as one that seems fast on a busy machine counts as several.
            teachers_min=4 * settings.teachers,
            timeouts=Timeouts(wait_s=GATHER_S),
        )
    with reader:
        pin_process(cores.student)
        yield reader


def gather(reader: DistilReader, teachers: int, check: Callable[[], None]) -> None:
    """Wait until the reader has all teachers."""
    deadline = time.monotonic() + GATHER_S
    while len(reader.stats.teachers) < teachers:
        check()
        if time.monotonic() > deadline:
            raise NoTeacherAvailable(
                f"{len(reader.stats.teachers)} of {teachers} teachers came within {GATHER_S:.0f} s:"
                f" {reader.stats.waiting_for or 'the others were not assigned'}"
            )
        time.sleep(POLL_S)


def _await_newcomer(churn: Churn, check: Callable[[], None]) -> None:
    """On a slow machine the training may end before the new teacher has loaded its framework."""
    deadline = time.monotonic() + GATHER_S
    while churn.newcomer_is_late and time.monotonic() < deadline:
        check()
        time.sleep(POLL_S)
