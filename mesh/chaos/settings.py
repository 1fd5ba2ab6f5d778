"""Settings of a chaos run; the defaults suit a machine with two cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...runtime.errors import UsageError

#: A shorter run ends before faults can have an effect.
MIN_SECONDS = 10.0
#: Upper limit of `ChaosSettings.max_concurrent_faults`.
MAX_CONCURRENT_FAULTS = 2
#: Name of the teacher that serves a different model, one that ends in a softmax.
PROBABILITIES = "probabilities"


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """Size, duration and seed of a chaos run.

    Attributes:
        seed: seed of the fault plan and of all random choices during the run.
        seconds: seconds during which faults are injected.
        teachers: number of teachers that run from start to end.
        guests: number of temporary teachers, which join and drain.
        refusing: number of misconfigured teachers that refuse every sample.
        students: number of students, each a job of one rank.
        ttl_s: TTL of leases, in seconds.
        grace_s: seconds that a teacher has to drain.
        teacher_rate: samples per second of one teacher.
        student_rate: samples per second of one student.
        deceive: also inject wrong labels that only a comparison with another teacher reveals.
    """

    seed: int
    seconds: float
    teachers: int = 4
    guests: int = 2
    refusing: int = 3
    students: int = 2
    ttl_s: float = 2.0
    grace_s: float = 5.0
    teacher_rate: float = 400.0
    student_rate: float = 200.0
    deceive: bool = False

    def __post_init__(self) -> None:
        if self.seconds < MIN_SECONDS:
            raise UsageError(
                f"a run of {self.seconds:g} s is too short for chaos: give --minutes at least"
                f" {MIN_SECONDS / 60:.2g}"
            )

    @property
    def teacher_names(self) -> tuple[str, ...]:
        return tuple(f"teacher-{number + 1}" for number in range(self.teachers))

    @property
    def guest_names(self) -> tuple[str, ...]:
        return tuple(f"guest-{number + 1}" for number in range(self.guests))

    @property
    def refusing_names(self) -> tuple[str, ...]:
        return tuple(f"refusing-{number + 1}" for number in range(self.refusing))

    @property
    def misconfigured_names(self) -> tuple[str, ...]:
        """Teachers with labels that no student may use: they refuse, or serve another model."""
        return (*self.refusing_names, PROBABILITIES)

    @property
    def student_names(self) -> tuple[str, ...]:
        return tuple(f"student-{number + 1}" for number in range(self.students))

    @property
    def student_options(self) -> dict[str, Any]:
        """Fields of `StudentConfig`; to find a lying teacher, a reader needs two honest ones."""
        return {"teachers": 3, "compared": 1.0} if self.deceive else {}

    @property
    def max_concurrent_faults(self) -> int:
        """Number of teachers and control-plane processes that may be faulty at once.

        It leaves at least one healthy teacher for each student.
        """
        return min(self.teachers - self.students, MAX_CONCURRENT_FAULTS)
