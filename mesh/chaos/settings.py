"""How a chaos run is cast: so that it fits two cores, and that one teacher feeds a student."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from .plan import Stage

#: Below this nothing would have time to happen.
LEAST_SECONDS = 10.0
#: Name of the teacher whose model is another one, with a softmax at its end.
PROBABILITIES = "probabilities"


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """What a run is.

    Attributes:
        seed: of the plan and of all that is random in carrying it out.
        seconds: how long faults begin.
        teachers: how many are always there.
        guests: how many more may come and go.
        refusing: how many more are always there, and refuse every sample.
        students: how many train.
        ttl_s: of leases.
        grace_s: that a teacher has to drain.
        teacher_rate: samples per second of one teacher.
        student_rate: samples per second that one student trains.
        deceive: have lies, too, that only a comparison with another teacher can find.
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
        if self.seconds < LEAST_SECONDS:
            raise UsageError(
                f"a run of {self.seconds:g} s is too short for chaos: give --minutes at least"
                f" {LEAST_SECONDS / 60:.2g}"
            )

    @property
    def teacher_names(self) -> tuple[str, ...]:
        """Of those that are always there."""
        return tuple(f"teacher-{number + 1}" for number in range(self.teachers))

    @property
    def guest_names(self) -> tuple[str, ...]:
        """Of those that come and go."""
        return tuple(f"guest-{number + 1}" for number in range(self.guests))

    @property
    def refusing_names(self) -> tuple[str, ...]:
        """Of those that refuse every sample."""
        return tuple(f"refusing-{number + 1}" for number in range(self.refusing))

    @property
    def misconfigured_names(self) -> tuple[str, ...]:
        """Of those that must label nothing: they refuse, or have another model."""
        return (*self.refusing_names, PROBABILITIES)

    @property
    def student_names(self) -> tuple[str, ...]:
        """Jobs of one rank each."""
        return tuple(f"student-{number + 1}" for number in range(self.students))

    @property
    def vigilance(self) -> dict[str, Any]:
        """What of a student's part depends on whether teachers lie: who lies takes three to say."""
        return {"teachers": 3, "compared": 1.0} if self.deceive else {}

    @property
    def stage(self) -> Stage:
        """What its plan is made for."""
        return Stage(
            self.seconds,
            self.teacher_names,
            self.guest_names,
            self.student_names,
            self.ttl_s,
            self.deceive,
        )
