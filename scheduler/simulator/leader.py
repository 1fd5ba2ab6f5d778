"""The leading manager of one service, with the live mesh's rules of assignment and autoscaling.

Events and reports arrive at any time; `assign` processes all of them at once, as a manager does. As
in a live mesh, a report is not news if only its measured times changed, by a tenth at most.
"""

from __future__ import annotations

from dataclasses import replace

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
from ..rates import is_notable_change
from .student import SimulatedStudent
from .teacher import CONTENT


class SimulatedLeader:
    """The leader of one service.

    Args:
        autoscale: settings of autoscaling; None: no autoscaling.

    Attributes:
        state: state of the assignment rule.
        desired: latest result of autoscaling; None: none yet, or no autoscaling.
    """

    def __init__(self, autoscale: AutoscaleConfig | None) -> None:
        self.state = rule.AssignmentState()
        self.desired: Desired | None = None
        self._autoscale = autoscale
        self._memory = AutoscaleMemory()
        self._events: list[rule.AssignmentEvent] = []
        self._reports: dict[str, rule.StudentReported] = {}  # each student's latest event
        self._loads: dict[str, tuple[StudentLoad, WaitTotals]] = {}
        self._waits = WaitTotals()

    def add_event(self, event: rule.AssignmentEvent) -> None:
        """Record an event of a teacher."""
        self._events.append(event)

    def add_report(self, student: SimulatedStudent) -> bool:
        """Record a student's report; return whether it is news and became an event."""
        name, group, core = student.name, student.group, student.reader.core
        memory, t_t_s, t_s_s = core.memory, core.stats.t_t_s or 0.0, core.stats.t_s_s or 0.0
        report = rule.StudentReported(
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
        load = StudentLoad(
            report.want, t_t_s, t_s_s, core.starves, report.unreachable, core.is_cut_off
        )
        waits = WaitTotals(memory.starved_s, memory.blocked_s, core.is_cut_off)
        if (before := self._loads.get(name)) is not None:
            self._waits = self._waits.grown(before[1], waits)
        self._loads[name] = load, waits
        known = self._reports.get(name)
        is_news = known is None or _is_news(known, report)
        if is_news:
            self._reports[name] = report
            self._events.append(report)
        return is_news

    def forget(self, student: SimulatedStudent) -> None:
        """Forget a student that has left, or that has lost its lease."""
        self._loads.pop(student.name, None)
        if self._reports.pop(student.name, None) is not None:
            self._events.append(rule.StudentGone(student.name))

    def assign(self, now: float) -> tuple[rule.AssignmentChange, ...]:
        """Process all events since the last call; return the changes for students."""
        events: list[rule.AssignmentEvent] = [*self._events, rule.Ticked()]
        self._events = []
        self.state, changes = rule.reduce(self.state, events, now)
        return changes

    def update_desired(self, serving: int, starting: int, now: float) -> Desired | None:
        """Decide and return the desired number of teachers; None: no autoscaling.

        Args:
            serving: number of teachers that may be assigned.
            starting: number of ordered teachers that do not serve yet.
            now: virtual time in seconds.
        """
        if self._autoscale is None:
            return None
        loads = [load for load, _ in self._loads.values()]
        view = load_of(loads, self._waits, serving=serving, starting=starting)
        self.desired, self._memory = decide(view, self._memory, now, self._autoscale)
        return self.desired


def _is_news(known: rule.StudentReported, new: rule.StudentReported) -> bool:
    if is_notable_change(known.t_t_s, new.t_t_s) or is_notable_change(known.t_s_s, new.t_s_s):
        return True
    return replace(known, t_t_s=new.t_t_s, t_s_s=new.t_s_s) != new
