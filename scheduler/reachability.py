"""Whether the teachers of a student can be reached at all, when none of them says anything.

A request may take minutes, and a connection over a path that is gone stays open. So silence may
mean slow models, or no path. Which of the two says the network itself: each teacher is connected to
anew, as a load balancer's health check does. A machine accepts a connection however busy the
program is that listens there, so a slow teacher is never taken for one that cannot be reached.

When a teacher that could not be reached can be again, what went over the old connections is lost:
TCP may wait for as long as the outage lasted before it sends again. So it is connected to anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

#: Nobody has said anything for so long: perhaps nobody can be reached. This is less than the time
#: after which a starving student asks for one more teacher (`FlowConfig.starved_for_s`).
DOUBT_S: Final = 0.25
#: The same: find out.
QUIET_S: Final = 0.5
#: A network answers within. An attempt lasts no longer, and the next one begins no sooner.
ATTEMPT_S: Final = 0.5
#: Attempts in a row without success, and a teacher counts as unreachable.
FAILURES: Final = 3
#: After a success the next attempt begins so much later, and twice as much after each further one.
PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Path:
    """What the attempts to reach one teacher have shown since it was heard of.

    Attributes:
        failures: attempts in a row without success.
        successes: the same with success.
        began_at: of the latest attempt.
        under_way: it is not over.
    """

    failures: int = 0
    successes: int = 0
    began_at: float | None = None
    under_way: bool = False

    def is_due(self, now: float) -> bool:
        """Whether it is time for an attempt."""
        if self.under_way or self.began_at is None:
            return not self.under_way
        pause_s = min(PAUSE_S * 2.0 ** min(self.successes - 1, 60), LONGEST_PAUSE_S)
        return now - self.began_at >= (pause_s if self.successes else ATTEMPT_S)


@dataclass(frozen=True, slots=True)
class Reachability:
    """What is known of all teachers of a student.

    Attributes:
        quiet_since: since when an answer is owed, and nobody has said anything; None: they do, or
            nothing was asked.
        paths: to those that are looked at, by teacher.
    """

    quiet_since: float | None = None
    paths: Mapping[str, Path] = field(default_factory=dict)

    @property
    def unreachable(self) -> frozenset[str]:
        """Teachers that cannot be reached."""
        return frozenset(name for name, one in self.paths.items() if one.failures >= FAILURES)

    @property
    def is_cut_off(self) -> bool:
        """Whether none of the teachers was reached when it was tried last: others may not help."""
        quiet = self.quiet_since is not None and bool(self.paths)
        return quiet and all(path.failures for path in self.paths.values())

    def may_be_cut_off(self, now: float) -> bool:
        """Whether that is so or not known: no teacher has been reached since all are quiet."""
        if self.quiet_since is None or now - self.quiet_since < DOUBT_S:
            return False
        return not any(path.successes for path in self.paths.values())


def look(
    before: Reachability, teachers: Collection[str], owed: bool, now: float
) -> tuple[Reachability, tuple[str, ...]]:
    """Time goes by.

    Args:
        before: what was known.
        teachers: all that the student was given.
        owed: whether an answer of any of them is outstanding: to a request, or to whether it
            serves.
        now: seconds of a clock that does not go back.

    Returns:
        What is known now, and the teachers to be connected to.
    """
    quiet_since = None
    if owed and teachers:
        quiet_since = now if before.quiet_since is None else before.quiet_since
    quiet = quiet_since is not None and now - quiet_since >= QUIET_S
    paths = {
        name: before.paths.get(name, Path())
        for name in teachers
        # One that was not reached is tried until it is, whoever else has answered meanwhile.
        if quiet or (name in before.paths and before.paths[name].failures)
    }
    due = tuple(name for name, path in paths.items() if path.is_due(now))
    for name in due:
        paths[name] = replace(paths[name], began_at=now, under_way=True)
    return Reachability(quiet_since, paths), due


def attempted(before: Reachability, name: str, reached: bool) -> tuple[Reachability, bool]:
    """An attempt to reach a teacher is over.

    Returns:
        What is known now, and whether the teacher is to be connected to anew.
    """
    path = before.paths.get(name)
    if path is None or not path.under_way:  # it was heard of meanwhile
        return before, False
    if reached:
        after = replace(path, failures=0, successes=path.successes + 1, under_way=False)
    else:
        after = replace(path, failures=path.failures + 1, successes=0, under_way=False)
    known = replace(before, paths={**before.paths, name: after})
    return known, reached and path.failures >= FAILURES


def heard(before: Reachability, name: str) -> Reachability:
    """A teacher has answered.

    One that could not be reached is tried on: what went over its other connections may be lost.
    """
    paths = before.paths
    if name in paths and paths[name].failures < FAILURES:
        paths = {other: path for other, path in paths.items() if other != name}
    return Reachability(None, paths)
