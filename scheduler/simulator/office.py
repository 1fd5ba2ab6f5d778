"""One service at its leading manager: the live mesh's own rules for who serves whom, and how many.

Events and reports come in at any time; a look takes all of them at once, as a manager's does. What
is no news to a live leader is none here: a measured time that moved by less than a tenth.
"""

from __future__ import annotations

from math import inf

from .. import assignment as rule
from ..autoscale import (
    AutoscaleConfig,
    AutoscaleMemory,
    Desired,
    StudentLoad,
    Waits,
    decide,
    load_of,
)
from .cast import Report, Student

#: All teachers of a simulated service serve the same model.
CONTENT = "model"
#: A measured time is news when it has moved by more than this, relative to what was told.
NEWS = 0.1


class Office:
    """The leader of one service.

    Args:
        autoscale: rules by which the number of teachers is chosen; None: it is not.

    Attributes:
        state: what the assignment rule knows.
        desired: what autoscaling said last; None: nothing.
    """

    def __init__(self, autoscale: AutoscaleConfig | None) -> None:
        self.state = rule.AssignmentState()
        self.desired: Desired | None = None
        self._autoscale = autoscale
        self._memory = AutoscaleMemory()
        self._events: list[rule.AssignmentEvent] = []
        self._told: dict[str, rule.StudentReported] = {}
        self._reports: dict[str, Report] = {}
        self._waits = Waits()

    @property
    def has_news(self) -> bool:
        """Whether the next look has something to look at."""
        return bool(self._events)

    @property
    def due_at(self) -> float:
        """When time alone changes something; infinite: never."""
        due = rule.next_due(self.state)
        return inf if due is None else due

    def hear(self, event: rule.AssignmentEvent) -> None:
        """Something has happened to a teacher."""
        self._events.append(event)

    def hear_of(self, student: Student, report: Report) -> None:
        """A student reports; what it says comes to the rule where it is news."""
        if (before := self._reports.get(student.name)) is not None:
            self._waits = self._waits.grown(_waits(before), _waits(report))
        self._reports[student.name] = report
        told = self._told.get(student.name)
        group = student.group
        event = rule.StudentReported(
            student.name,
            report.want,
            min=group.teachers_min,
            priority=group.priority,
            needed=report.needed,
            t_t_s=report.t_t_s,
            t_s_s=report.t_s_s,
            urgent=report.starves,
            unreachable=len(report.unavailable),
            unavailable=tuple(sorted(report.unavailable)),
            content_id=CONTENT,
        )
        if told is None or _is_news(told, event):
            self._told[student.name] = event
            self._events.append(event)

    def forget(self, student: Student) -> None:
        """A student has left, or its lease is over."""
        self._reports.pop(student.name, None)
        if self._told.pop(student.name, None) is not None:
            self._events.append(rule.StudentGone(student.name))

    def look(self, now: float) -> tuple[rule.Change, ...]:
        """Take in what has come: what students are to be told."""
        events: list[rule.AssignmentEvent] = [*self._events, rule.Ticked()]
        self._events = []
        self.state, changes = rule.reduce(self.state, events, now)
        return changes

    def scale(self, serving: int, starting: int, now: float) -> Desired | None:
        """How many teachers there should be; None: nobody asks.

        Args:
            serving: teachers that may be assigned.
            starting: that are ordered, and not there yet.
            now: the time.
        """
        if self._autoscale is None:
            return None
        every = (
            StudentLoad(one.want, one.t_t_s, one.t_s_s, one.starves)
            for one in self._reports.values()
        )
        view = load_of(every, self._waits, serving=serving, starting=starting)
        self.desired, self._memory = decide(view, self._memory, now, self._autoscale)
        return self.desired


def _is_news(told: rule.StudentReported, new: rule.StudentReported) -> bool:
    if (told.want, told.needed, told.urgent, told.unavailable) != (
        new.want,
        new.needed,
        new.urgent,
        new.unavailable,
    ):
        return True
    pairs = ((told.t_t_s, new.t_t_s), (told.t_s_s, new.t_s_s))
    return any(abs(after - before) > NEWS * before for before, after in pairs)


def _waits(report: Report) -> Waits:
    return Waits(report.starved_s, report.blocked_s)
