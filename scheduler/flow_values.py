"""What flow control is told, remembers and decides.

What is made anew with each decision is a named tuple, which takes a third of the time of a frozen
dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple, Self

#: What the student's side is doing; see `flow.state_of`.
State = Literal["starved", "source_wait", "blocked", "steady"]


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """Settings of one reader's flow control.

    Attributes:
        upper_bytes: `ut` of Algorithm 1: above it no new batch is pulled.
        lower_bytes: `lt`: below it pulling goes on; 0 <= lt < ut.
        teachers_min: never want fewer (>= 1).
        teachers_max: never want more.
        cooldown_s: time between two rises of the want; a teacher takes that long to show.
        starved_for_s: so much starving, on balance, asks for one more teacher.
        tolerated: share of the time that a student may starve for ever without asking for more.
        source_credit_s: waiting for the source pays for so much starving at most.
        surplus_window_s: time over which a surplus is measured before a teacher is given back.
        surplus_margin: so much more than one teacher must have been idle, in teachers.
        buffer_bytes: the most that labelled and unlabelled batches may have, by the largest batch
            so far; one batch may always be there. None: no limit.

    Raises:
        ValueError: a bound is broken.
    """

    upper_bytes: int
    lower_bytes: int
    teachers_min: int = 1
    teachers_max: int = 64
    cooldown_s: float = 2.0
    starved_for_s: float = 0.3
    tolerated: float = 0.02
    source_credit_s: float = 1.0
    surplus_window_s: float = 15.0
    surplus_margin: float = 0.25
    buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.lower_bytes < self.upper_bytes:
            raise ValueError(
                f"needs 0 <= lower_bytes < upper_bytes, not {self.lower_bytes}, {self.upper_bytes}"
            )
        if self.buffer_bytes is not None and self.buffer_bytes < self.upper_bytes:
            raise ValueError(
                f"needs upper_bytes <= buffer_bytes, not {self.upper_bytes}, {self.buffer_bytes}"
            )
        if not 1 <= self.teachers_min <= self.teachers_max:
            raise ValueError(
                "needs 1 <= teachers_min <= teachers_max,"
                f" not {self.teachers_min}, {self.teachers_max}"
            )
        spans = (self.cooldown_s, self.starved_for_s, self.source_credit_s, self.surplus_margin)
        if not (min(spans) >= 0 and self.surplus_window_s > 0 and 0 <= self.tolerated < 1):
            raise ValueError("times and margins are not negative, and 0 <= tolerated < 1")


class FlowView(NamedTuple):
    """What is the case now. The first seven and `batch_bytes` come from the ledger's `Load`.

    Attributes:
        volume_bytes: bytes of batches that are labelled and not taken.
        queued: batches that wait for a teacher.
        unlabelled: batches queued or in flight.
        windows: batches that fill the windows of the usable teachers: `Load.window_batches`.
        free_windows: requests that could be sent now; 0 also without a teacher.
        idle: usable teachers with nothing in flight.
        teachers: how many of the teachers wanted have come.
        waiting: the student is in a call of `next`, and the next batch has no labels yet.
        source_ended: the source has nothing more for this epoch.
        t_t_s: seconds per sample of the average teacher, None until it is measured.
        t_s_s: seconds per sample of the student's step, unhindered; None until it is measured.
        unreachable: teachers that were given and do not answer; their leases have not run out yet.
        batch_bytes: most that a batch had so far, inputs and labels; 0 until there is one.
        judges: teachers that are wanted besides, to tell which of others is wrong.
        presumed: one of the two times, or both, is remembered of an earlier run.
        cut_off: as far as is known, none of its teachers can be reached, or none lets it in.
    """

    volume_bytes: int
    queued: int
    unlabelled: int
    windows: int
    free_windows: int
    idle: int
    teachers: int
    waiting: bool
    source_ended: bool
    t_t_s: float | None
    t_s_s: float | None
    unreachable: int = 0
    batch_bytes: int = 0
    judges: int = 0
    presumed: bool = False
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """When pulling paused or went on: an entry of a reader's event log.

    Attributes:
        pulling: whether it has gone on; False: it has paused.
        volume_bytes: labelled and not taken at that moment.
        threshold_bytes: `lt` where it has gone on, `ut` where it has paused.
    """

    pulling: bool
    volume_bytes: int
    threshold_bytes: int

    @property
    def why(self) -> str:
        """The reason, in words."""
        if not self.volume_bytes:
            return "nothing waits for the student"
        side = "below lt" if self.pulling else "above ut"
        return f"{self.volume_bytes} bytes wait for the student, {side} = {self.threshold_bytes}"


class FlowMemory(NamedTuple):
    """What one decision leaves to the next. The three sums of seconds are for reports."""

    starved_s: float = 0.0  # the student waited for labels
    blocked_s: float = 0.0  # pulling was paused
    source_wait_s: float = 0.0  # the student waited for the source

    now: float | None = None  # of the last decision; the next fields held from then on
    state: State = "steady"
    pulling: bool = True
    turn: Turn | None = None  # the latest
    hungry: bool = False  # starved, and one more teacher would have had a batch to work on
    idle: int = 0  # teachers without anything to do, less those that are not wanted any more

    needed: int = 0  # n; 0 while unknown
    presumed: bool = False  # n stands on times that were remembered
    off_ratio_since: float | None = None  # since when ceil(t_t / t_s) has been on one side of n
    off_ratio_n: int = 0  # the nearest to n that it was since then
    adjust: int = 0  # want - n, before the bounds
    fell_to: int = 0  # where the want was let down to last; 0: it has risen since
    held: int = 0  # it is not let down below this, as it came back from there
    held_ratio: float = 0.0  # t_t / t_s when it did
    off_held_since: float | None = None  # since when it has been clearly less
    changed_at: float = -inf  # when the want moved last
    reason: str = "nothing is measured yet"  # of the want, in words
    hunger_s: float = 0.0  # balance of time hungry; below 0: of time that the source was waited for
    surplus_since: float = -inf  # start of the surplus window
    surplus_idle_s: float = 0.0  # teacher-seconds idle in it

    @classmethod
    def start(cls) -> Self:
        """The memory of a reader that has just been opened."""
        return cls()


class FlowDecision(NamedTuple):
    """What to do now.

    Attributes:
        pull: how many more batches may be pulled from the source now.
        want: how many teachers to ask the coordinator for.
        needed: n = ceil(t_t / t_s); 0 while it is unknown.
        state: what the student's side is doing.
        reason: why the want is what it is.
        turn: when pulling paused or went on last, the same until it does so again; None: never.
    """

    pull: int
    want: int
    needed: int
    state: State
    reason: str
    turn: Turn | None = None

    @classmethod
    def start(cls, config: FlowConfig) -> Self:
        """What holds before the first decision."""
        return cls(0, config.teachers_min, 0, "steady", FlowMemory().reason)
