"""Who is in a simulated mesh: its students and teachers, as the control plane knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .scenario import StudentGroup, TeacherGroup

#: "starting": ordered, and not there yet. "serving". "draining": takes nothing new. "hung": says
#: nothing, but its lease may still run. "gone": its process is over; its lease may still run.
TeacherState = Literal["starting", "serving", "draining", "hung", "gone"]


@dataclass(eq=False, slots=True)
class Teacher:
    """One teacher.

    Attributes:
        name: its id.
        group: what it is like.
        number: within its group; later ones have greater numbers.
        state: what it is.
        slowed: its work takes so many times as long as the group's does.
        leased: the registry believes that it is there.
        life: of its lease; what was planned for an earlier one is void.
        registered_at: when its lease began.
        beats_from: it beats then, and every TTL / 2.5 after that.
        served_from: since when it has been there; None: it has not come, or is gone.
        there_s: how long it was there, up to then.
        drain_heard: students have been told that it takes nothing new.
    """

    name: str
    group: TeacherGroup
    number: int
    state: TeacherState = "starting"
    slowed: float = 1.0
    leased: bool = False
    life: int = 0
    registered_at: float = 0.0
    beats_from: float = 0.0
    served_from: float | None = None
    there_s: float = 0.0
    drain_heard: bool = False

    @property
    def works(self) -> bool:
        """Whether its device works on what it is sent."""
        return self.state in ("serving", "draining")

    def device_s(self, now: float, samples: int) -> float:
        """Seconds of a request that begins now, without jitter."""
        return self.slowed * self.group.device_s(now, samples)

    def there_until(self, now: float) -> float:
        """Seconds that it was there until now."""
        return self.there_s + (0.0 if self.served_from is None else now - self.served_from)


@dataclass(eq=False, slots=True)
class Student:
    """One student.

    Attributes:
        name: its id.
        group: what it is like.
        batches: that it trains; None: no end.
        began_s: when it came; None: it has not come yet.
        ended_s: when it was done or left; None: it is there.
        slowed: its steps take so many times as long as the group's do.
    """

    name: str
    group: StudentGroup
    batches: int | None
    began_s: float | None = None
    ended_s: float | None = None
    slowed: float = 1.0

    @property
    def is_there(self) -> bool:
        """Whether it has come and has not left."""
        return self.began_s is not None and self.ended_s is None

    def step_s(self, now: float, connected: int) -> float:
        """Seconds of a step that begins now, without jitter."""
        return self.slowed * self.group.step_s(now, connected)
