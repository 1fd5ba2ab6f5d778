"""Reachability of a student's teachers, and pauses before a teacher is asked again.

A request may take minutes, and a connection over a broken path stays open. So silence may mean slow
models, or no path. A new connection to each teacher tells which, as in the health check of a load
balancer. A machine accepts connections for a busy program too, as long as their queue has room, so
a slow teacher hardly ever looks unreachable.

When an unreachable teacher can be reached again, data on its old connections is lost: TCP may wait
as long as the outage lasted before it retransmits. So the reader reconnects.

A teacher that could not answer is asked again after a pause. A server that does not describe its
model is believed once it has named the same outputs often enough.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Generic, Literal, TypeVar

from .backoff import RandomLike, retry_s

#: Seconds of silence after which possibly no teacher can be reached. Less than the time after which
#: a starving student asks for one more teacher (`flow.STARVED_FOR_S`).
DOUBT_S: Final = 0.25
#: Seconds of silence after which each teacher is tried.
SILENT_S: Final = 0.5
#: Longest time of an attempt, and shortest time between two failed ones, in seconds.
ATTEMPT_S: Final = 0.5
#: Consecutive failed attempts after which a teacher counts as unreachable.
FAILURES: Final = 3
#: Seconds between a successful attempt and the next one.
PAUSE_S: Final = 1.0

#: Identity of a teacher; a restarted or moved one has another identity.
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts to connect to one teacher since its latest answer.

    Attributes:
        failures: consecutive failures.
        reached: the latest attempt succeeded.
        began_at: start of the latest attempt; minus infinity: none.
        under_way: the latest attempt is not over.
    """

    failures: int = 0
    reached: bool = False
    began_at: float = -inf
    under_way: bool = False

    @property
    def due_at(self) -> float:
        """When the next attempt is due; infinity while one is under way."""
        if self.under_way:
            return inf
        return self.began_at + (PAUSE_S if self.reached else ATTEMPT_S)


@dataclass(frozen=True, slots=True)
class Reachability(Generic[T]):
    """Reachability of all teachers of a student.

    Attributes:
        silent_since: since when an answer is outstanding and no teacher has said anything; None:
            not silent.
        is_cut_off: all attempts in this silence failed, also to teachers that came since. More
            teachers may not help.
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
        """Whether the student may be cut off: no teacher was reached since all are silent."""
        if self.silent_since is None or now - self.silent_since < DOUBT_S:
            return False
        return not any(tried.reached for tried in self.attempts.values())


def look(
    before: Reachability[T], teachers: Collection[T], owed: bool, now: float
) -> tuple[Reachability[T], tuple[T, ...]]:
    """Return the state after time has passed, and the teachers to connect to.

    Args:
        before: the previous state.
        teachers: all teachers of the student.
        owed: an answer to a request or to a probe is outstanding.
        now: monotonic seconds.
    """
    silent_since = None
    if owed and teachers:
        silent_since = now if before.silent_since is None else before.silent_since
    silent = silent_since is not None and now - silent_since >= SILENT_S
    if not silent and not before.attempts:  # the usual case
        return (before if before.silent_since == silent_since else Reachability(silent_since)), ()
    attempts: dict[T, Attempts] = {}
    due: list[T] = []
    for teacher in teachers:
        known = before.attempts.get(teacher, Attempts())
        # Try an unreached teacher until it is reached, even if others answer.
        if not (silent or known.failures):
            continue
        if known.due_at <= now:
            known = replace(known, began_at=now, under_way=True)
            due.append(teacher)
        attempts[teacher] = known
    in_vain = before.is_cut_off or all(tried.failures for tried in attempts.values())
    return Reachability(silent_since, silent and in_vain, attempts), tuple(due)


def next_look_at(known: Reachability[T]) -> float:
    """Return when `look` can next find something by time alone; minus infinity: at any time."""
    if known.silent_since is None:
        return -inf
    if not known.attempts:
        return known.silent_since + SILENT_S
    return min(tried.due_at for tried in known.attempts.values())


def attempted(
    before: Reachability[T], teacher: T, began_at: float, reached: bool
) -> tuple[Reachability[T], bool]:
    """Record the result of an attempt that began at `began_at`.

    Returns:
        The new state, and whether to reconnect to the teacher.
    """
    known = before.attempts.get(teacher)
    if known is None or not known.under_way or known.began_at != began_at:
        return before, False  # the teacher has answered meanwhile
    after = Attempts(0 if reached else known.failures + 1, reached, began_at)
    attempts = {**before.attempts, teacher: after}
    is_cut_off = before.is_cut_off and not reached
    reconnects = reached and known.failures >= FAILURES
    return Reachability(before.silent_since, is_cut_off, attempts), reconnects


def answered(before: Reachability[T], teacher: T) -> Reachability[T]:
    """Record an answer of a teacher, which is reachable.

    Attempts to an unreachable one go on: data on its other connections may be lost.
    """
    attempts = before.attempts
    if teacher in attempts and attempts[teacher].failures < FAILURES:
        attempts = {other: tried for other, tried in attempts.items() if other != teacher}
    return Reachability(attempts=attempts)


#: Shortest pause for a teacher that rejects the reader: an operator has to fix that.
REFUSED_PAUSE_S: Final = 5.0
#: Longest pause that a full teacher can request.
FULL_PAUSE_S: Final = 30.0
#: Number of equal answers after which the outputs of a server without a model description are
#: believed.
EQUAL_ANSWERS: Final = 2

Outputs = Literal["ask", "believe", "contradiction"]


def pause_s(
    failures: int, rng: RandomLike, *, refused: bool = False, room_in_s: float | None = None
) -> float:
    """Return the seconds until a teacher is asked again.

    The first retry is immediate. A full teacher that says when it will have room is asked then,
    however often it was full before: it has not failed.

    Args:
        failures: consecutive failures before this one.
        rng: jitters the retries.
        refused: the teacher rejects the reader.
        room_in_s: when it will have room, as it says; None: unknown.
    """
    if room_in_s is not None:
        return min(max(room_in_s, 0.0), FULL_PAUSE_S)
    pause = retry_s(failures, rng)
    return max(pause, REFUSED_PAUSE_S) if refused else pause


def believed_outputs(answers: Sequence[Sequence[str]]) -> Outputs:
    """Decide about a server without a model description, by the outputs that it named so far.

    Their order does not matter.
    """
    if any(sorted(names) != sorted(answers[0]) for names in answers):
        return "contradiction"
    return "believe" if len(answers) >= EQUAL_ANSWERS else "ask"
