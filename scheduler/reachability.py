"""Reachability of a student's teachers, and pauses before a teacher is probed again.

A request may take minutes, and a connection over a broken path stays open. So silence may mean slow
models, or no path. A new connection to each teacher shows which, as in the health check of a load
balancer. An operating system accepts connections for a busy program too, until its backlog is full,
so a slow teacher hardly ever looks unreachable.

When an unreachable teacher can be reached again, data on its old connections counts as lost: TCP
may retransmit it only after another pause as long as the outage. So the reader reconnects.

A teacher that could not answer is probed again after a pause. If a server does not describe its
model, its outputs are believed once enough answers have named the same outputs.
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
#: Seconds of silence after which a connection to each teacher is attempted.
SILENT_S: Final = 0.5
#: Longest time of an attempt, and shortest time between two failed ones, in seconds.
ATTEMPT_S: Final = 0.5
#: Consecutive failed attempts after which a teacher counts as unreachable.
FAILURES: Final = 3
#: Seconds between a successful attempt and the next one.
PAUSE_S: Final = 1.0

#: Identity of a teacher; a restarted or moved teacher has another identity.
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The latest attempts to connect to one teacher.

    Attributes:
        failures: consecutive failures.
        reached: the latest finished attempt succeeded.
        began_at: start of the latest attempt; minus infinity: there was none.
        under_way: the latest attempt has no result yet.
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
        silent_since: since when an answer is outstanding and no teacher has sent anything; None:
            not silent.
        is_cut_off: an attempt to each teacher has failed in this silence, and none has succeeded
            since. So more teachers may not help.
        attempts: by teacher; teachers without need of an attempt are missing.
    """

    silent_since: float | None = None
    is_cut_off: bool = False
    attempts: Mapping[T, Attempts] = field(default_factory=dict)

    @property
    def unreachable(self) -> frozenset[T]:
        """Teachers that cannot be reached."""
        attempts = self.attempts.items()
        return frozenset(teacher for teacher, tried in attempts if tried.failures >= FAILURES)

    def may_be_cut_off(self, now: float) -> bool:
        """Whether the student may be cut off: none of the silent teachers was reached."""
        if self.silent_since is None or now - self.silent_since < DOUBT_S:
            return False
        return not any(tried.reached for tried in self.attempts.values())


def tick(
    before: Reachability[T], teachers: Collection[T], is_answer_due: bool, now: float
) -> tuple[Reachability[T], tuple[T, ...]]:
    """Return the state after time has passed, and the teachers to connect to.

    Args:
        before: the previous state.
        teachers: all teachers of the student.
        is_answer_due: an answer to a request or to a probe is outstanding.
        now: monotonic seconds.
    """
    silent_since = None
    if is_answer_due and teachers:
        silent_since = now if before.silent_since is None else before.silent_since
    silent = silent_since is not None and now - silent_since >= SILENT_S
    if not silent and not before.attempts:  # the usual case
        return (before if before.silent_since == silent_since else Reachability(silent_since)), ()
    attempts: dict[T, Attempts] = {}
    due: list[T] = []
    for teacher in teachers:
        known = before.attempts.get(teacher, Attempts())
        # After a failed attempt, try the teacher until it is reached, even if others answer.
        if not (silent or known.failures):
            continue
        if known.due_at <= now:
            known = replace(known, began_at=now, under_way=True)
            due.append(teacher)
        attempts[teacher] = known
    all_failed = before.is_cut_off or all(tried.failures for tried in attempts.values())
    return Reachability(silent_since, silent and all_failed, attempts), tuple(due)


def attempted(
    before: Reachability[T], teacher: T, began_at: float, reached: bool
) -> tuple[Reachability[T], bool]:
    """Record the result of an attempt that began at `began_at`; ignore it if it is outdated.

    Returns:
        The new state, and whether to reconnect to the teacher.
    """
    known = before.attempts.get(teacher)
    if known is None or not known.under_way or known.began_at != began_at:
        return before, False  # the teacher has answered since then
    after = Attempts(0 if reached else known.failures + 1, reached, began_at)
    attempts = {**before.attempts, teacher: after}
    is_cut_off = before.is_cut_off and not reached
    reconnects = reached and known.failures >= FAILURES
    return Reachability(before.silent_since, is_cut_off, attempts), reconnects


def answered(before: Reachability[T], teacher: T) -> Reachability[T]:
    """Record an answer of a teacher.

    Attempts to a teacher that counts as unreachable go on: only a successful attempt makes the
    reader reconnect, and data on the old connections may be lost.
    """
    attempts = before.attempts
    if teacher in attempts and attempts[teacher].failures < FAILURES:
        attempts = {other: tried for other, tried in attempts.items() if other != teacher}
    return Reachability(attempts=attempts)


#: Shortest pause for a teacher that rejects the reader: a person has to fix that.
REFUSED_PAUSE_S: Final = 5.0
#: Longest pause that a full teacher can request.
FULL_PAUSE_S: Final = 30.0
#: Number of equal answers after which the outputs of a server without a model description are
#: believed.
EQUAL_ANSWERS: Final = 2

#: "ask": another answer is needed; "believe": the outputs are known; "contradiction": answers name
#: different outputs.
Outputs = Literal["ask", "believe", "contradiction"]


def pause_s(
    failures: int, rng: RandomLike, *, refused: bool = False, retry_after_s: float | None = None
) -> float:
    """Return the seconds until a teacher is probed again.

    A full teacher that states when it will have room is probed at that time, however often it was
    full before: being full is no failure.

    Args:
        failures: consecutive failures that lengthen the pause; 0: probe again at once.
        rng: jitters the retries.
        refused: the teacher rejects the reader; it is never probed before `REFUSED_PAUSE_S`.
        retry_after_s: seconds after which a full teacher expects to have room; None: unknown.
    """
    if retry_after_s is not None:
        return min(max(retry_after_s, 0.0), FULL_PAUSE_S)
    pause = retry_s(failures, rng)
    return max(pause, REFUSED_PAUSE_S) if refused else pause


def believed_outputs(answers: Sequence[Sequence[str]]) -> Outputs:
    """Decide whether to believe the outputs of a server that does not describe its model.

    Args:
        answers: names of the outputs in each answer so far (at least one), in any order.
    """
    if any(sorted(names) != sorted(answers[0]) for names in answers):
        return "contradiction"
    return "believe" if len(answers) >= EQUAL_ANSWERS else "ask"
