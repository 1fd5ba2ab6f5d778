"""The assignment state while a batch of events is applied to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import assert_never

from .. import debounce
from .assignment_table import Note
from .state import (
    AssignmentEvent,
    AssignmentState,
    ContentPlan,
    ContentPlanned,
    RecoveryBegan,
    RecoveryEnded,
    SpeedClass,
    StudentEntry,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    TeacherEntry,
    TeacherUp,
    Ticked,
    elapse_speed,
    follow_speed,
    is_known,
    need_of,
    pools,
    power_class,
    want_without_replacements,
)

#: Teachers that give a student no labels are left out of its share, so that it gets replacements
#: even if teachers are scarce. At most this many are left out. If the student wants more teachers
#: than this, without replacements, its want is the limit. If it is cut off, none are left out.
#: Further such teachers count in its share: a student that can use few teachers of a service must
#: not collect all of them.
MAX_LEFT_OUT = 3


class WorkingState:
    """Mutable copy of the state while a batch of events is applied.

    Attributes:
        lost: teachers that were lost, or returned as another incarnation.
        why: text of the latest event, by teacher or student.
        notes: reasons for changes that the rule made, by student.
        speed_changed: teachers with a changed speed class.
        new: students that this batch added.
        between_epochs: students that now wait between two epochs of their data.
        must_assign: the rule must be applied, because assignments may have to change.
        changed: something differs from the old state.
    """

    def __init__(self, state: AssignmentState, now: float) -> None:
        self.now = now
        self.teachers = dict(state.teachers)
        self.students = dict(state.students)
        self.anchor, self.plan, self.recovering = state.anchor, state.plan, state.recovering
        self.lost: set[str] = set()
        self.why: dict[str, str] = {}
        self.notes: dict[str, list[Note]] = {}
        self.speed_changed: set[str] = set()
        self.new: set[str] = set()
        self.between_epochs: set[str] = set()
        self.must_assign = self.changed = False

    @cached_property
    def pools(self) -> dict[str, dict[str, float]]:
        """Teachers that may be assigned, after all events; see `state.pools`."""
        return pools(self.teachers)

    @cached_property
    def asking_per_content(self) -> Counter[str]:
        """How many students need teachers, by content, after the contents are settled."""
        return Counter(entry.content_id for entry in self.students.values() if entry.need > 0)

    @cached_property
    def students_per_teacher(self) -> Counter[str]:
        """How many students each teacher has, after the rule was applied."""
        return Counter(name for entry in self.students.values() for name in entry.teachers)

    def apply(self, events: Sequence[AssignmentEvent]) -> None:
        """Apply a batch of events in order.

        Raises:
            ValueError: a student wants a negative number of teachers.
        """
        for event in events:
            match event:
                case StudentReported():
                    self._reported(event)
                case TeacherUp():
                    self._up(event)
                case TeacherDraining(name):
                    self._draining(name)
                case TeacherDown(name, lost):
                    self._down(name, lost)
                case StudentGone(name):
                    if self.students.pop(name, None) is not None:
                        self.new.discard(name)
                        self._mark_changed()
                case ContentPlanned(current, following, at):
                    self._planned(ContentPlan(current, following, at, declared=bool(current)))
                case RecoveryBegan() | RecoveryEnded():
                    recovering = isinstance(event, RecoveryBegan)
                    if recovering != self.recovering:
                        self.recovering = recovering
                        self._mark_changed()
                case Ticked():
                    self._ticked()
                case _:
                    assert_never(event)

    def _mark_changed(self) -> None:
        self.must_assign = self.changed = True

    # -- teachers

    def _up(self, event: TeacherUp) -> None:
        name, known = event.teacher_id, self.teachers.get(event.teacher_id)
        if not self.anchor and is_known(event.speed):
            self.anchor = event.speed
        speed_class = known.speed_class if known else SpeedClass()
        if known is not None and known.incarnation != event.incarnation:
            speed_class = SpeedClass(speed_class.power)  # it may run on another machine now
        speed_class = follow_speed(speed_class, event.speed, self.anchor, self.now)
        entry = TeacherEntry(event.incarnation, speed_class, event.content_id, event.host)
        if entry == known:
            return
        self.teachers[name] = entry
        if known is not None and replace(known, speed_class=speed_class) == entry:
            self._speed_changed(name, known.power, speed_class.power)
            return
        self.why[name] = f"teacher {name} serves"
        if known is not None and known.incarnation != event.incarnation:
            self.lost.add(name)
            self.why[name] = f"teacher {name} registered again"
        elif known is not None and known.content_id != event.content_id:
            self.why[name] = f"teacher {name} serves another content"
        self._mark_changed()

    def _speed_changed(self, name: str, before: float, power: float) -> None:
        self.changed = True
        if power != before:
            how = "faster" if power > before else "slower"
            self.why[name] = f"teacher {name} is {how} than before"
            self.speed_changed.add(name)
            self.must_assign = True

    def _draining(self, name: str) -> None:
        known = self.teachers.get(name)
        if known is not None and not known.draining:
            self.teachers[name] = replace(known, draining=True)
            self.why[name] = f"teacher {name} drains"
            self._mark_changed()

    def _down(self, name: str, lost: bool) -> None:
        if name not in self.teachers:
            return
        del self.teachers[name]
        if lost:
            self.lost.add(name)
        self.why[name] = f"teacher {name} was lost" if lost else f"teacher {name} has left"
        self._mark_changed()

    # -- students

    def _reported(self, report: StudentReported) -> None:
        name, known = report.student_id, self.students.get(report.student_id)
        if report.want < 0:
            raise ValueError(f"student {name} cannot want {report.want} teachers")
        unit = known.unit if known else None
        if is_known(report.t_t_s):
            unit = power_class(1 / report.t_t_s, self.anchor, unit)
        unit = unit or 1.0
        requested = need_of(report, unit)
        if known is None:
            demand = debounce.begin(requested)
        else:
            demand = debounce.follow(known.demand, requested, report.urgent, self.now)
        most_left_out = max(want_without_replacements(report), MAX_LEFT_OUT)
        most_left_out = 0 if report.cut_off else most_left_out
        left_out = report.unavailable[:most_left_out]
        counted = max(min(report.unreachable, report.want) - len(left_out), 0)
        entry = replace(
            known or _newcomer(report, demand),
            want=report.want,
            need=demand.value + counted * unit,
            demand=demand,
            min=report.min,
            priority=report.priority,
            unit=unit,
            unavailable=frozenset(left_out).intersection(
                known.teachers if known else report.holding
            ),
            host=report.host,
            data_epoch=report.data_epoch,
        )
        if entry == known:
            return
        self.changed = True
        self.students[name] = entry
        if known is None:
            self.new.add(name)
        elif report.data_epoch != known.data_epoch and not report.content_id:
            self.between_epochs.add(name)
        if known is None or _rule_inputs(entry) != _rule_inputs(known):
            self.why[name] = f"student {name} {_describe_change(entry, known)}"
            self.must_assign = True

    def _ticked(self) -> None:
        for teacher, known in self.teachers.items():
            speed_class = elapse_speed(known.speed_class, self.now)
            if speed_class is not known.speed_class:
                self.teachers[teacher] = replace(known, speed_class=speed_class)
                self._speed_changed(teacher, known.power, speed_class.power)
        for name, entry in self.students.items():
            demand = debounce.elapse(entry.demand, self.now)
            if demand is not entry.demand:
                need = entry.need + demand.value - entry.demand.value
                self.students[name] = replace(entry, need=need, demand=demand)
                self.why[name] = f"student {name} wants {entry.want}"
                self._mark_changed()

    # -- the plan

    def _planned(self, plan: ContentPlan) -> None:
        if not plan.declared:
            plan = replace(plan, current=self.plan.current)
        if plan != self.plan:
            self.plan = plan
            self._mark_changed()


def _newcomer(report: StudentReported, demand: debounce.Debounced) -> StudentEntry:
    return StudentEntry(
        report.want,
        demand.value,
        demand,
        content_id=report.content_id,
        labelled=bool(report.content_id),
        teachers=tuple(dict.fromkeys(report.holding)),
    )


def _describe_change(entry: StudentEntry, known: StudentEntry | None) -> str:
    """Describe what changed in a student's claim."""
    if known is None or entry.want != known.want:
        return f"wants {entry.want}"
    if entry.priority != known.priority:
        return f"has priority {entry.priority}, not {known.priority}"
    if entry.min != known.min:
        return f"is guaranteed {entry.min}"
    if entry.unavailable != known.unavailable:
        names = ", ".join(sorted(entry.unavailable))
        return f"gets no labels from {names}" if names else "gets no replacements any more"
    if entry.unit != known.unit:
        return f"finds its teachers {'faster' if entry.unit > known.unit else 'slower'} than before"
    return f"wants {entry.want}"


def _rule_inputs(entry: StudentEntry) -> tuple[object, ...]:
    """Return the fields whose changes make the rule run again."""
    return entry.need, entry.min, entry.priority, entry.unavailable
