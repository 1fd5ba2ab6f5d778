"""Which ranks hang or straggle, and what is done about a rank that failed.

Ranks are judged by when each told of its last step. A rank hangs when it has told of no step for
`hang_s`; while it starts (imports, first batch, the group) it has `START_FACTOR` times as long. One
that waits for something outside, and says so, does not hang. Ranks step together, so one that hangs
holds up all others: of those that are silent the ones to blame are those that the system has
suspended, or else that are behind; or else all of them. Where all ranks of a world wait for each
other, no other step will come.

What failed is started again, or its node is left out, or the job stops. Restarting is for what
chance did: a killed process, a card that fell off the bus. A node whose rank fails twice in a row,
the second time no further than the first, is left out where the others are enough. What fails on
the same step three times would fail for ever: the job stops and names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields
from statistics import median_low
from typing import Any, Final, Literal, Self

from .shards import Ranges

#: So much longer than a step may a start take, and so long at least, in seconds.
START_FACTOR: Final = 3.0
START_S: Final = 120.0
#: A rank is named as a straggler when it needs so many times the median of the others per row.
SLOWER: Final = 1.5
_FEWEST_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class RankProgress:
    """What is known of one rank.

    Attributes:
        rank: its number in the world.
        step: the last one that it told of; 0: none in this generation.
        started: all that comes before its first step is done.
        at_s: when it told of it, or was started.
        heard_s: when it said anything.
        waiting_for: what it said it waits for; empty: nothing.
        suspended: the system says that it is stopped by a signal.
    """

    rank: int
    step: int
    at_s: float
    heard_s: float
    started: bool = True
    waiting_for: str = ""
    suspended: bool = False


def allowed_s(progress: RankProgress, hang_s: float) -> float:
    """How long this rank may go without a step, in seconds."""
    return hang_s if progress.started else max(START_FACTOR * hang_s, START_S)


def hung(ranks: Sequence[RankProgress], hang_s: float, now_s: float) -> tuple[int, ...]:
    """The ranks of one node that hang and are to blame; empty: none does.

    Args:
        ranks: of the ranks that still run.
        hang_s: seconds without a step, while nothing is waited for.
        now_s: of the clock that the signs are told by.
    """
    silent = [progress for progress in ranks if _is_silent(progress, hang_s, now_s)]
    if not silent:
        return ()
    suspended = [progress.rank for progress in silent if progress.suspended]
    if suspended:
        return tuple(suspended)
    behind = min(progress.step for progress in silent)
    return tuple(progress.rank for progress in silent if progress.step == behind)


def _is_silent(progress: RankProgress, hang_s: float, now_s: float) -> bool:
    if progress.suspended:  # it cannot say what it waits for, nor will it stop waiting by itself
        return now_s - max(progress.at_s, progress.heard_s) >= hang_s
    # What it waits for has limits of its own; yet it has to say so anew, lest it died saying it.
    since_s = progress.heard_s if progress.waiting_for else progress.at_s
    return now_s - since_s >= allowed_s(progress, hang_s)


def deadlocked(peers_s: Sequence[float], ranks: int, hang_s: float) -> bool:
    """Whether the ranks of a world wait for each other for good.

    Args:
        peers_s: of each rank that has told of it, for how long it has waited for the others.
        ranks: in the world.
        hang_s: seconds without a step.
    """
    return len(peers_s) == ranks and min(peers_s) >= hang_s


def straggler(seconds_per_row: Mapping[int, Iterable[float]]) -> int | None:
    """The rank that is slower than the others by more than `SLOWER`; None: there is none.

    Args:
        seconds_per_row: of each rank's last steps, without what it waited for; ranks without rows
            in a step leave it out.
    """
    usual = {
        rank: median_low(found)
        for rank, times in seconds_per_row.items()
        if len(found := list(times)) >= _FEWEST_STEPS
    }
    if len(usual) < 2:
        return None
    rank = max(usual, key=lambda one: (usual[one], -one))
    others = [time for one, time in usual.items() if one != rank]
    return rank if usual[rank] > SLOWER * median_low(others) > 0 else None


#: How a rank failed: its code raised; it ended by a signal or without a word; it made no progress;
#: its whole node has gone; it went because others were gone, which nobody else has told of.
FailureKind = Literal["crash", "killed", "hang", "lost", "adrift"]
#: These say nothing against the step or the node that tells of them.
_BLAMELESS: Final = ("lost", "adrift")

SAME_STEP: Final = 3
IN_VAIN: Final = 6
#: More than any rule looks back at.
REMEMBERED: Final = 24
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One rank that failed, in one generation.

    Attributes:
        generation: of its world.
        node: its node's id.
        rank: its number in that world; -1: the whole node.
        how: what became of it.
        step: that it was taking, from 1; 0: it was still starting.
        epoch: of that step, from 0.
        positions: of the batch, in the order of the epoch; empty: not known.
        error: one line.
        usage: nothing is to be tried again: the job file, or a setting, is wrong.
        restored: step of the checkpoint that its generation began with.
        gave_up: nothing is to be tried again: it has waited for a teacher as long as it was to.
    """

    generation: int
    node: str
    rank: int = -1
    how: FailureKind = "crash"
    step: int = 0
    epoch: int = 0
    positions: tuple[int, ...] = ()
    error: str = ""
    usage: bool = False
    restored: int = 0
    gave_up: bool = False

    @property
    def is_final(self) -> bool:
        """Nothing is to be tried again."""
        return self.usage or self.gave_up

    @property
    def place(self) -> tuple[int, int]:
        """What has to be equal for two failures to be on the same step."""
        return (self.step, 0) if self.step else (0, self.restored)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "positions": list(self.positions)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        known = {one.name for one in fields(cls)}
        given = {name: told for name, told in value.items() if name in known}
        return cls(**{**given, "positions": tuple(given.get("positions", ()))})

    def in_words(self) -> str:
        """As in "rank 1 on node a crashed on step 5 of epoch 2 (positions 3, 9): ValueError: x"."""
        if self.how == "lost":
            return f"node {self.node} was lost: {self.error or 'its lease ran out'}"
        did = {"crash": "crashed", "killed": "died", "hang": "hung", "adrift": "lost its peers"}
        ending = "gave up" if self.gave_up else did[self.how]
        where = f"on step {self.step} of epoch {self.epoch}" if self.step else "while it started"
        batch = f" ({positions_in_words(self.positions)})" if self.positions else ""
        return f"rank {self.rank} on node {self.node} {ending} {where}{batch}: {self.error}"


@dataclass(frozen=True, slots=True)
class ExcludeNode:
    """The others form it; `why` in words."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class StopJob:
    """The job cannot go on; `report` says why and what to do.

    Attributes:
        usage: what the user gave cannot work, whoever tries.
        gave_up: no teacher came in time; another start of the job may find one.
    """

    report: str
    usage: bool = False
    gave_up: bool = False


def react_to_failures(
    failures: Sequence[RankFailure], nodes: Set[str], least: int
) -> ExcludeNode | StopJob | None:
    """What to do after the latest generation of `failures`; None: its nodes form the next one.

    Args:
        failures: of this job, in the order in which they came; the last generation's are new.
        nodes: that could form the next generation, those that failed among them.
        least: nodes that a world needs.
    """
    if not failures:
        return None
    newest = [one for one in failures if one.generation == failures[-1].generation]
    for one in newest:
        if one.usage:
            return StopJob(one.error or one.in_words(), usage=True)
        if one.gave_up:
            return StopJob(one.in_words(), gave_up=True)
    for one in newest:
        if (
            one.how not in _BLAMELESS
            and (times := _times_on_the_same_step(one, failures)) >= SAME_STEP
        ):
            return StopJob(
                f"{one.in_words()}; that step failed {times} times, so it is not tried again"
            )
    if (vain := _in_vain(failures)) >= IN_VAIN:
        return StopJob(
            f"{newest[0].in_words()}; {vain} generations in a row came no further than step"
            f" {max(one.step for one in failures[-vain:])}, so the job stops"
        )
    node = _fails_again(failures)
    if node and len(nodes - {node}) >= least:
        return ExcludeNode(node, f"its ranks failed twice in a row: {newest[0].in_words()}")
    return None


def positions_in_words(positions: Iterable[int]) -> str:
    """As in "positions 4-9, 17": runs joined, cut where it gets long."""
    ranges = Ranges.of_numbers(positions)
    texts = [str(a) if a == stop - 1 else f"{a}-{stop - 1}" for a, stop in ranges.pairs]
    more = f" and {len(texts) - _SHOWN} more runs" if len(texts) > _SHOWN else ""
    return f"position{'s' if ranges.count > 1 else ''} {', '.join(texts[:_SHOWN])}{more}"


def _times_on_the_same_step(one: RankFailure, failures: Sequence[RankFailure]) -> int:
    return len({o.generation for o in failures if o.how not in _BLAMELESS and o.place == one.place})


def _of_generations(failures: Sequence[RankFailure]) -> list[RankFailure]:
    """The first failure of each generation: the others are often its consequences."""
    firsts: dict[int, RankFailure] = {}
    for one in failures:
        firsts.setdefault(one.generation, one)
    return list(firsts.values())


def _in_vain(failures: Sequence[RankFailure]) -> int:
    """How many of the last generations failed that came no further than one before them."""
    firsts = _of_generations(failures)
    count, furthest = 1, firsts[0].step
    for one in firsts[1:]:
        came_further = one.step > furthest or one.restored > max(furthest - 1, 0)
        count = 1 if came_further else count + 1
        furthest = max(furthest, one.step)
    return count


def _fails_again(failures: Sequence[RankFailure]) -> str:
    """The node that failed in the last two generations and came no further; empty: none."""
    firsts = [one for one in _of_generations(failures) if one.how not in _BLAMELESS]
    if len(firsts) < 2:
        return ""
    before, last = firsts[-2:]
    again = before.node == last.node and last.generation == before.generation + 1
    return last.node if again and last.step <= before.step else ""
