"""Teachers as rates: how many batches per second each of them labels for each student it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

from ..cast import Student, Teacher
from ..plane import Work
from ..scenario import Link, Scenario, StudentGroup


class User(Protocol):
    """A student, as its teachers see it."""

    student: Student

    @property
    def active(self) -> bool:
        """Whether its teachers have something to do for it."""

    @property
    def use(self) -> float:
        """The part of its teachers' time that its source can keep busy (at most 1)."""


@dataclass(eq=False, slots=True)
class Device:
    """One teacher.

    Attributes:
        teacher: as the control plane knows it.
        holds: of the students that send to it.
        users: all students that it ever had, by name.
        free_at: until then it is busy with what students left that were told to leave it.
        busy_s, batches: what it has done, in lane-seconds and batches.
    """

    teacher: Teacher
    holds: dict[str, Hold] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    free_at: float = 0.0
    busy_s: float = 0.0
    batches: float = 0.0

    @property
    def work(self) -> Work:
        """What it has done."""
        return Work(self.busy_s, self.batches)

    def is_idle(self, now: float) -> bool:
        """Whether nobody has anything under way here."""
        if not self.teacher.works:
            return True
        return now >= self.free_at and not any(hold.user.active for hold in self.holds.values())

    def sharing(self, user: User) -> Iterable[User]:
        """The others that use it now."""
        return (hold.user for hold in self.holds.values() if hold.user is not user)


@dataclass(eq=False, slots=True)
class Hold:
    """A student's teacher.

    Attributes:
        user: the student.
        device: the teacher.
        from_s: from then on answers come.
        device_s: of a batch, on one lane.
        travel_s: of a batch and its labels, while nothing else is on the way.
        most: batches per second that its lanes, its window and its own link allow.
    """

    user: User
    device: Device
    from_s: float = inf
    device_s: float = 0.0
    travel_s: float = 0.0
    most: float = 0.0

    def follow(self, now: float, scenario: Scenario) -> None:
        """The teacher's speed may be another one."""
        group, teacher = self.user.student.group, self.device.teacher
        self.device_s = teacher.device_s(now, group.batch)
        self.travel_s = travel_s(group, teacher, scenario)
        window = max(scenario.window, scenario.window_max) / (self.device_s + self.travel_s)
        width = link_of(teacher, scenario).bandwidth_bytes_per_s
        wire = inf if width is None else width / wire_bytes(group)
        self.most = min(teacher.group.lanes / self.device_s, window, wire)

    @property
    def works(self) -> bool:
        """Whether the teacher does."""
        return self.device.teacher.works

    @property
    def rate(self) -> float:
        """Batches per second that this student gets of it.

        Students that have something under way there share it evenly; one that its source keeps
        short leaves the rest to the others.
        """
        holds = self.device.holds
        if len(holds) < 2:
            return self.most
        uses = [user.use for user in self.device.sharing(self.user) if user.active]
        left, sharers = 1.0, len(uses) + 1
        for use in sorted(uses):
            if use >= left / sharers:
                break
            left -= use
            sharers -= 1
        return self.most * left / sharers

    def window(self, scenario: Scenario) -> int:
        """Requests in flight that keep it busy: as few as that takes, as the live rule finds."""
        needed = ceil(self.most * (self.device_s + self.travel_s) - 1e-9)
        return min(max(scenario.window, needed), max(scenario.window, scenario.window_max))


def travel_s(group: StudentGroup, teacher: Teacher, scenario: Scenario) -> float:
    """Seconds on the way, there and back, of a batch that is alone on it."""
    mine = group.link or scenario.link
    theirs = link_of(teacher, scenario)
    seconds = 2 * max(mine.latency_s, theirs.latency_s)
    widths = [link.bandwidth_bytes_per_s for link in (mine, theirs)]
    width = min((one for one in widths if one is not None), default=None)
    if width is not None:
        seconds += group.batch * (group.input_bytes + group.label_bytes) / width
    return seconds


def link_of(teacher: Teacher, scenario: Scenario) -> Link:
    """The link of a teacher's machine."""
    return teacher.group.link or scenario.link


def wire_bytes(group: StudentGroup) -> float:
    """Bytes of a batch in the direction that has more of them (links carry both at once)."""
    return group.batch * max(group.input_bytes, group.label_bytes)
