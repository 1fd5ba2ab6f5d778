"""Whether the teachers of a student can be reached at all, and when one is asked again.

A request may take minutes, and a connection over a path that is gone stays open. So silence may
mean slow models, or no path. The network itself says which: each teacher is connected to anew, as a
load balancer's health check does. A machine accepts connections for a busy program too, as long as
their queue has room, so a slow teacher hardly ever looks unreachable.

When a teacher that could not be reached can be again, what went over the old connections is lost:
TCP may wait for as long as the outage lasted before it sends again. So it is connected to anew.

A teacher that could not answer is asked again after a pause, and one that does not describe its
model is believed when it has said the same often enough.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Generic, Literal, TypeVar

from .backoff import RandomLike, retry_s

#: Seconds of silence after which perhaps nobody can be reached. This is less than the time after
#: which a starving student asks for one more teacher (`FlowConfig.starved_for_s`).
DOUBT_S: Final = 0.25
#: Seconds of silence after which each teacher is tried.
SILENT_S: Final = 0.5
#: Seconds that an attempt lasts at most, and from one that failed to the next one at least.
ATTEMPT_S: Final = 0.5
#: Attempts in a row without success, and a teacher counts as unreachable.
FAILURES: Final = 3
#: Seconds from an attempt that succeeded to the next one.
PAUSE_S: Final = 1.0

#: How a teacher is told from others. One that is started anew or moves is another one.
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Attempts:
    """What the attempts to reach one teacher have shown since it was heard of.

    Attributes:
        failures: in a row, up to the latest.
        reached: the latest succeeded.
        began_at: of the latest; minus infinity if there was none.
        under_way: the latest is not over.
    """

    failures: int = 0
    reached: bool = False
    began_at: float = -inf
    under_way: bool = False

    @property
    def due_at(self) -> float:
        """When it is time for an attempt; infinite while one is under way."""
        if self.under_way:
            return inf
        return self.began_at + (PAUSE_S if self.reached else ATTEMPT_S)


@dataclass(frozen=True, slots=True)
class Reachability(Generic[T]):
    """What is known of all teachers of a student.

    Attributes:
        silent_since: since when an answer is owed, and nobody has said anything; None: they do, or
            nothing was asked.
        is_cut_off: all were tried in vain in this silence, and none was reached since, nor any of
            those that came since. More teachers may not help.
        attempts: by teacher, for those that are tried.
    """

    silent_since: float | None = None
    is_cut_off: bool = False
    attempts: Mapping[T, Attempts] = field(default_factory=dict)

    @property
    def unreachable(self) -> frozenset[T]:
        """Teachers that cannot be reached."""
        return frozenset(one for one, tried in self.attempts.items() if tried.failures >= FAILURES)

    def may_be_cut_off(self, now: float) -> bool:
        """Whether that is so or not known: no teacher has been reached since all are silent."""
        if self.silent_since is None or now - self.silent_since < DOUBT_S:
            return False
        return not any(tried.reached for tried in self.attempts.values())


def look(
    before: Reachability[T], teachers: Collection[T], owed: bool, now: float
) -> tuple[Reachability[T], tuple[T, ...]]:
    """Time goes by.

    Args:
        before: what was known.
        teachers: all of the student.
        owed: an answer is outstanding, of a request or of the question whether a teacher is there.
        now: monotonic seconds.

    Returns:
        What is known now, and the teachers to be connected to.
    """
    silent_since = None
    if owed and teachers:
        silent_since = now if before.silent_since is None else before.silent_since
    silent = silent_since is not None and now - silent_since >= SILENT_S
    if not silent and not before.attempts:  # as nearly always
        return (before if before.silent_since == silent_since else Reachability(silent_since)), ()
    attempts: dict[T, Attempts] = {}
    due: list[T] = []
    for teacher in teachers:
        known = before.attempts.get(teacher, Attempts())
        # One that was not reached is tried until it is, whoever else has answered meanwhile.
        if not (silent or known.failures):
            continue
        if known.due_at <= now:
            known = replace(known, began_at=now, under_way=True)
            due.append(teacher)
        attempts[teacher] = known
    in_vain = before.is_cut_off or all(tried.failures for tried in attempts.values())
    return Reachability(silent_since, silent and in_vain, attempts), tuple(due)


def look_at(known: Reachability[T]) -> float:
    """When the next look may find something, if nothing else happens until then."""
    if known.silent_since is None:
        return -inf
    if not known.attempts:
        return known.silent_since + SILENT_S
    return min(tried.due_at for tried in known.attempts.values())


def attempted(
    before: Reachability[T], teacher: T, began_at: float, reached: bool
) -> tuple[Reachability[T], bool]:
    """An attempt that began at `began_at` is over.

    Returns:
        What is known now, and whether the teacher is to be connected to anew.
    """
    known = before.attempts.get(teacher)
    if known is None or not known.under_way or known.began_at != began_at:
        return before, False  # it was heard of meanwhile
    after = Attempts(0 if reached else known.failures + 1, reached, began_at)
    attempts = {**before.attempts, teacher: after}
    is_cut_off = before.is_cut_off and not reached
    anew = reached and known.failures >= FAILURES
    return Reachability(before.silent_since, is_cut_off, attempts), anew


def heard(before: Reachability[T], teacher: T) -> Reachability[T]:
    """A teacher has answered: it can be reached.

    One that could not be reached is tried on: what went over its other connections may be lost.
    """
    attempts = before.attempts
    if teacher in attempts and attempts[teacher].failures < FAILURES:
        attempts = {other: tried for other, tried in attempts.items() if other != teacher}
    return Reachability(attempts=attempts)


#: A teacher that does not let the reader in is asked as rarely: an operator has to mend that.
REFUSED_PAUSE_S: Final = 5.0
#: A teacher that is full is believed no more than this about when it will have room.
FULL_PAUSE_S: Final = 30.0
#: So often a server names its outputs alike, where it does not describe its model, to be believed.
TELLINGS: Final = 2

Outputs = Literal["ask", "believe", "contradiction"]


def pause_s(
    failures: int, rng: RandomLike, *, refused: bool = False, room_in_s: float | None = None
) -> float:
    """Seconds until a teacher is asked again.

    The first retry is made at once. A teacher that is full and says when it will have room is asked
    then, however often it was full before: it has not failed.

    Args:
        failures: how often it had failed before this time, in a row.
        rng: scatters the retries.
        refused: it does not let the reader in.
        room_in_s: when it will have room, as it says; None: it says nothing of that.
    """
    if room_in_s is not None:
        return min(max(room_in_s, 0.0), FULL_PAUSE_S)
    pause = retry_s(failures, rng)
    return max(pause, REFUSED_PAUSE_S) if refused else pause


def believed_outputs(told: Sequence[Sequence[str]]) -> Outputs:
    """What to do about a server that does not describe its model, of whose outputs it named these.

    The order in which it names them does not matter, so long as none is missing or new.
    """
    if any(sorted(names) != sorted(told[0]) for names in told):
        return "contradiction"
    return "believe" if len(told) >= TELLINGS else "ask"
