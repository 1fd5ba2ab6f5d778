"""Meshes of devices with stated rates: predicted and measured throughput."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ...distill_reader import DistilReader
from ...scheduler.cluster import Cluster, DeviceKind, DeviceRate, Distillation
from ...scheduler.pipeline_model import DeviceGroup, PlannedMesh, predict
from ...scheduler.simulator import Scenario, StudentGroup, TeacherGroup, simulate
from ..report import MIN_ROUNDS
from ..teachers.models import FEATURES
from . import FOR_EVER, ROWS, SERVICE, Repeated, batch
from .streams import SETTLING, PacedStudent, windows_s
from .teachers import paced, start_teachers

_FLOAT_BYTES: Final = 4
_CLASSES: Final = 10
_SIMULATED_BATCHES: Final = 600
_STUDENT: Final = "student"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A mesh of stated rates, in which each student has its own teachers.

    Attributes:
        name: name of the mesh.
        step_s: seconds of a batch at each student.
        teachers: seconds of a batch at each teacher of one student.
        students: number of students.
    """

    name: str
    step_s: float
    teachers: tuple[float, ...]
    students: int = 1

    @property
    def kinds(self) -> dict[str, tuple[float, int]]:
        """Name of each kind of teacher -> seconds of a batch, number in the whole mesh."""
        counts = Counter(self.teachers * self.students)
        return {f"{1e3 * batch_s:g} ms": (batch_s, count) for batch_s, count in counts.items()}


CONFIGURATIONS: Final = (
    Configuration("1 slow teacher", 0.020, (0.040,)),  # half as fast as the student
    Configuration("2 fast teachers", 0.030, (0.040, 0.040)),  # together faster than the student
    Configuration("3 of 4 teachers", 0.015, (0.060, 0.060, 0.060)),  # one fewer than needed
    Configuration("slow and fast", 0.010, (0.030, 0.090)),
    Configuration("2 students", 0.020, (0.050, 0.050), students=2),  # two teachers for each
)


def planned(configuration: Configuration) -> float:
    """Return the samples per second of all students that the planner predicts."""
    kinds = configuration.kinds
    devices = [DeviceKind(name, count) for name, (_, count) in kinds.items()]
    job = Distillation(
        name=configuration.name,
        samples=ROWS * _SIMULATED_BATCHES,
        batch=(ROWS,),
        student={_STUDENT: DeviceRate(seconds_per_sample=configuration.step_s / ROWS)},
        teacher={
            name: DeviceRate(seconds_per_sample=batch_s / ROWS)
            for name, (batch_s, _) in kinds.items()
        },
        sample_bytes=FEATURES * _FLOAT_BYTES,
        label_bytes=_CLASSES * _FLOAT_BYTES,
        students=configuration.students,
        synchronous=False,
    )
    cluster = Cluster((DeviceKind(_STUDENT, configuration.students), *devices))
    teacher_groups = tuple(DeviceGroup(name, float(count)) for name, (_, count) in kinds.items())
    return predict(
        cluster, job, PlannedMesh(_STUDENT, configuration.students, teacher_groups, ROWS)
    ).samples_per_s


def simulated(configuration: Configuration) -> float:
    """Return the samples per second of all students in a simulation."""
    services = [f"service-{number}" for number in range(configuration.students)]
    teacher_count = len(configuration.teachers)
    students = tuple(
        StudentGroup(
            f"{_STUDENT}-{service}",
            configuration.step_s / ROWS,
            batch=ROWS,
            batches=_SIMULATED_BATCHES,
            teachers_min=teacher_count,
            teachers_max=teacher_count,
            input_bytes=FEATURES * _FLOAT_BYTES,
            label_bytes=_CLASSES * _FLOAT_BYTES,
            service=service,
        )
        for service in services
    )
    teachers = tuple(
        TeacherGroup(f"{service}-{number}", batch_s / ROWS, service=service)
        for service in services
        for number, batch_s in enumerate(configuration.teachers)
    )
    slowest_s = max(configuration.step_s, *configuration.teachers)
    scenario = Scenario(students, teachers, configuration.name, warm_up_s=SETTLING * slowest_s)
    return simulate(scenario, random.Random).samples_per_s


def measured(configuration: Configuration, window_s: float) -> list[float]:
    """Run the mesh with processes of teachers and real readers; return the rate in each window.

    Args:
        configuration: the mesh.
        window_s: length of each window in seconds.

    Returns:
        Samples per second of all students, in consecutive windows.

    Raises:
        ProcessFailed: a teacher does not start.
    """
    teacher_count = len(configuration.teachers)
    pool_s = 1 / sum(1 / batch_s for batch_s in configuration.teachers)
    best_s = max(pool_s, configuration.step_s)
    # A multiple of the number of teachers: their labels come in bursts.
    per_window = teacher_count * max(round(window_s / best_s / teacher_count), 1)
    skipped = SETTLING * teacher_count
    with ExitStack() as stack:
        options = [paced(batch_s) for batch_s in configuration.teachers * configuration.students]
        addresses = [address for address, _ in start_teachers(stack, options)]
        students = [PacedStudent(configuration.step_s) for _ in range(configuration.students)]
        readers = []
        for number in range(configuration.students):
            own = addresses[number * teacher_count : (number + 1) * teacher_count]
            source = Repeated(batch(), count=FOR_EVER)
            reader = stack.enter_context(DistilReader(source, service=SERVICE, teachers=own))
            readers.append(reader)
        batches = skipped + MIN_ROUNDS * per_window + 1
        pool = stack.enter_context(ThreadPoolExecutor(len(students)))
        trainings = [
            pool.submit(_train, student, reader, batches)
            for student, reader in zip(students, readers, strict=True)
        ]
        for training in trainings:
            training.result()
    return _rates(
        [list(windows_s(student, skipped, per_window)) for student in students], per_window
    )


def _train(student: PacedStudent, reader: DistilReader, batches: int) -> None:
    student.train(labelled for labelled, _ in zip(reader, range(batches), strict=False))


def _rates(windows_by_student: Sequence[Sequence[float]], per_window: int) -> list[float]:
    """Return the samples per second of all students together in each window."""
    rounds = zip(*windows_by_student, strict=True)
    return [sum(ROWS * per_window / seconds for seconds in round_s) for round_s in rounds]
