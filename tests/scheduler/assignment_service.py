"""The assignment rule with its state and its clock, for tests that tell it what happens."""

from __future__ import annotations

from edl.scheduler.assignment import (
    AssignmentChange,
    AssignmentEvent,
    AssignmentState,
    StudentReported,
    TeacherUp,
    Ticked,
    next_due,
    reduce,
)


class Service:
    """One service of which everything is told in virtual time."""

    def __init__(self, *events: AssignmentEvent) -> None:
        self.state = AssignmentState()
        self.now = 0.0
        self.see(*events)

    def see(self, *events: AssignmentEvent) -> dict[str, AssignmentChange]:
        """Tell a batch of events; the changes by student."""
        self.state, changes = reduce(self.state, events, self.now)
        return {change.student_id: change for change in changes}

    def told(self, *events: AssignmentEvent) -> tuple[str, str]:
        """What a/0 hears of a batch of events: its teachers, and those that it has lost."""
        change = self.see(*events)["a/0"]
        return "".join(change.teachers), "".join(change.lost)

    def contents_told(self, *events: AssignmentEvent) -> tuple[str, str]:
        """What a/0 hears of a batch of events: its content, and that of its next epoch."""
        change = self.see(*events)["a/0"]
        return change.content_id, change.next_content_id

    def wait(self, seconds: float) -> list[AssignmentChange]:
        """Let time pass, ticking when the rule says that it is due."""
        changes: list[AssignmentChange] = []
        end = self.now + seconds
        while (due := next_due(self.state)) is not None and due <= end:
            self.now = due
            changes += self.see(Ticked()).values()
        self.now = end
        return changes

    def has(self, student: str) -> str:
        """The teachers of a student, in the order of the alphabet."""
        return "".join(sorted(self.state.students[student].teachers))

    def content(self, student: str) -> str:
        """The content of a student's labels."""
        return self.state.students[student].content_id

    def count(self, student: str) -> int:
        return len(self.state.students[student].teachers)

    @property
    def counts(self) -> list[int]:
        return [len(entry.teachers) for entry in self.state.students.values()]

    @property
    def idle(self) -> set[str]:
        held = {name for entry in self.state.students.values() for name in entry.teachers}
        return set(self.state.teachers) - held


def up(names: str, speed: float = 0.0, content: str = "", host: str = "") -> list[TeacherUp]:
    """A teacher for each letter."""
    return [TeacherUp(name, 1, speed, content, host) for name in names]


def wants(
    student: str,
    want: int,
    holding: str = "",
    *,
    min: int = 1,
    priority: int = 0,
    unreachable: int = 0,
    unavailable: str = "",
    cut_off: bool = False,
) -> StudentReported:
    return StudentReported(
        student,
        want,
        tuple(holding),
        min,
        priority,
        unreachable=unreachable or len(unavailable),
        unavailable=tuple(unavailable),
        cut_off=cut_off,
    )


def measured(student: str, ratio: float, *, t_t_s: float = 0.01) -> StudentReported:
    """A student that knows t_t and t_s, with t_t / t_s = `ratio`, and wants n."""
    n = max(1, -int(-ratio // 1))
    return StudentReported(student, n, needed=n, t_t_s=t_t_s, t_s_s=t_t_s / ratio)
