"""The leading manager of one service, with the live mesh's rules of assignment and autoscaling.

Events and reports arrive at any time; a look processes all of them at once, as a manager does. As
in the live registry, a measured time that changed by less than a tenth is no news for the leader.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from .. import assignment as rule
from ..autoscale import (
    AutoscaleConfig,
    AutoscaleMemory,
    Desired,
    StudentLoad,
    WaitTotals,
    decide,
    load_of,
)
from ..rates import is_time_news
from .student import SimulatedStudent
from .teacher import CONTENT


class SimulatedLeader:
    """The leader of one service.

    Args:
        autoscale: settings of autoscaling; None: there is none.

    Attributes:
        state: state of the assignment rule.
        desired: latest result of autoscaling; None: none.
    """

    def __init__(self, autoscale: AutoscaleConfig | None) -> None:
        self.state = rule.AssignmentState()
        self.desired: Desired | None = None
        self._autoscale = autoscale
        self._memory = AutoscaleMemory()
        self._events: list[rule.AssignmentEvent] = []
        self._told: dict[str, rule.StudentReported] = {}
        self._heard: dict[str, tuple[StudentLoad, WaitTotals]] = {}
        self._waits = WaitTotals()

    @property
    def has_news(self) -> bool:
        """Whether events wait for the next look."""
        return bool(self._events)

    @property
    def due_at(self) -> float:
        """When time alone changes something; infinity: never."""
        due = rule.next_due(self.state)
        return inf if due is None else due

    def hear(self, event: rule.AssignmentEvent) -> None:
        """Record an event of a teacher."""
        self._events.append(event)

    def hear_of(self, student: SimulatedStudent) -> None:
        """Record a student's report; it becomes an event if it has news."""
        name, group, core = student.name, student.group, student.reader.core
        memory, t_t_s, t_s_s = core.memory, core.stats.t_t_s or 0.0, core.stats.t_s_s or 0.0
        waits = WaitTotals(memory.starved_s, memory.blocked_s, core.is_cut_off)
        load = StudentLoad(
            core.decision.want,
            t_t_s,
            t_s_s,
            core.starves,
            len(core.unavailable),
            core.is_cut_off,
        )
        if (before := self._heard.get(name)) is not None:
            self._waits = self._waits.grown(before[1], waits)
        self._heard[name] = load, waits
        event = rule.StudentReported(
            name,
            core.decision.want,
            min=group.teachers_min,
            priority=group.priority,
            needed=core.decision.needed,
            t_t_s=t_t_s,
            t_s_s=t_s_s,
            urgent=core.starves,
            unreachable=len(core.unavailable),
            unavailable=tuple(sorted(core.unavailable)),
            cut_off=core.is_cut_off,
            content_id=CONTENT,
        )
        told = self._told.get(name)
        if told is None or _is_news(told, event):
            self._told[name] = event
            self._events.append(event)

    def forget(self, student: SimulatedStudent) -> None:
        """Forget a student that has left, or that has lost its lease."""
        self._heard.pop(student.name, None)
        if self._told.pop(student.name, None) is not None:
            self._events.append(rule.StudentGone(student.name))

    def look(self, now: float) -> tuple[rule.AssignmentChange, ...]:
        """Process all events; return the changes for students."""
        events: list[rule.AssignmentEvent] = [*self._events, rule.Ticked()]
        self._events = []
        self.state, changes = rule.reduce(self.state, events, now)
        return changes

    def scale(self, serving: int, starting: int, now: float) -> Desired | None:
        """Return the desired number of teachers; None: without autoscaling.

        Args:
            serving: teachers that may be assigned.
            starting: ordered teachers that do not serve yet.
            now: the time.
        """
        if self._autoscale is None:
            return None
        loads = [load for load, _ in self._heard.values()]
        view = load_of(loads, self._waits, serving=serving, starting=starting)
        self.desired, self._memory = decide(view, self._memory, now, self._autoscale)
        return self.desired


def _is_news(told: rule.StudentReported, new: rule.StudentReported) -> bool:
    if is_time_news(told.t_t_s, new.t_t_s) or is_time_news(told.t_s_s, new.t_s_s):
        return True
    return replace(told, t_t_s=new.t_t_s, t_s_s=new.t_s_s) != new
