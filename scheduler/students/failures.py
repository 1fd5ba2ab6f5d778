"""Ranks that hang or straggle, and what to do after a rank failed.

A rank hangs when it has reported no step for `hang_s`. During its start (imports, first batch,
process group) the limit is longer (`allowed_s`). A rank does not hang while it keeps reporting that
it waits for something outside, such as labels. Ranks step together, so a rank that hangs stops all
others. Of the ranks without progress, those that a signal has suspended are to blame; without such
ranks, those at the lowest step.

A node sees only its own ranks. The leader sees all ranks, so it can find out that they wait for
each other (`deadlocked`).

Failed ranks are restarted, or their node is excluded, or the job stops. Restarts help after
accidents: a killed process, a device that dropped off the bus. A node is excluded if its ranks made
two generations in a row fail, the second one came no further than the first, and the other nodes
suffice. A step that failed three times is expected to fail always: the job stops and names the
step. The same holds for three failed starts from one checkpoint. The job also stops after six
generations without progress, and at once if a retry cannot help (`RankFailure.is_final`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import median_low
from typing import Final, Literal

from .shards import Ranges

#: The limit of a start is this multiple of a step's limit, but at least `START_S` seconds.
START_FACTOR: Final = 3.0
START_S: Final = 120.0
#: A straggler needs this multiple of the others' median time per row.
SLOWER: Final = 1.5
_FEWEST_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Progress of one rank.

    Attributes:
        rank: its number in the world.
        step: its latest reported step; 0: none in this generation.
        at_s: time of the report of that step; if there is none, the time at which the rank started.
        heard_s: time of its latest message.
        started: it has finished everything before its first step.
        waiting_for: what it waits for by its latest report; empty: nothing.
        suspended: a signal has stopped its process, as the operating system reports.
    """

    rank: int
    step: int
    at_s: float
    heard_s: float
    started: bool = True
    waiting_for: str = ""
    suspended: bool = False


def allowed_s(progress: RankProgress, hang_s: float) -> float:
    """Return for how many seconds this rank may report no step."""
    return hang_s if progress.started else max(START_FACTOR * hang_s, START_S)


def hung(ranks: Sequence[RankProgress], hang_s: float, now_s: float) -> tuple[int, ...]:
    """Return the ranks of one node that hang and are to blame.

    Args:
        ranks: the ranks that still run.
        hang_s: limit in seconds without a step.
        now_s: the time, by the clock of the reports.
    """
    silent = [progress for progress in ranks if _is_silent(progress, hang_s, now_s)]
    if not silent:
        return ()
    suspended = [progress.rank for progress in silent if progress.suspended]
    if suspended:
        return tuple(suspended)
    lowest = min(progress.step for progress in silent)
    return tuple(progress.rank for progress in silent if progress.step == lowest)


def _is_silent(progress: RankProgress, hang_s: float, now_s: float) -> bool:
    if progress.suspended:  # it can neither report what it waits for nor continue by itself
        return now_s - max(progress.at_s, progress.heard_s) >= hang_s
    # A wait for something outside has limits of its own. But a rank that stops reporting it may
    # have died.
    since_s = progress.heard_s if progress.waiting_for else progress.at_s
    return now_s - since_s >= allowed_s(progress, hang_s)


def deadlocked(peers_s: Mapping[int, float], ranks: int, hang_s: float) -> tuple[int, ...]:
    """Return all ranks of a world if they wait for each other; empty: it may still make a step.

    A rank that does something else is judged by its node (`hung`). For a rank that waits for labels
    other limits apply, however long the others wait for it.

    Args:
        peers_s: seconds for which each rank has waited for other ranks without a break; 0: it does
            something else. Ranks that have reported nothing are missing.
        ranks: number of ranks in the world.
        hang_s: limit in seconds without a step.
    """
    if not peers_s or len(peers_s) < ranks or min(peers_s.values()) < hang_s:
        return ()
    return tuple(sorted(peers_s))


def straggler(seconds_per_row: Mapping[int, Iterable[float]]) -> int | None:
    """Return the rank that takes more than `SLOWER` times as long as the others; None: none does.

    Args:
        seconds_per_row: by rank, the seconds per row of its latest steps, without waiting. Steps
            without rows are left out.
    """
    medians = {
        rank: median_low(listed)
        for rank, times in seconds_per_row.items()
        if len(listed := list(times)) >= _FEWEST_STEPS
    }
    if len(medians) < 2:
        return None
    slowest = max(medians, key=lambda rank: (medians[rank], -rank))
    others = [time for rank, time in medians.items() if rank != slowest]
    return slowest if medians[slowest] > SLOWER * median_low(others) > 0 else None


#: How a rank failed. "crash": its code raised; "killed": it ended by a signal or without a report;
#: "hang": it made no progress; "lost": its whole node is gone; "adrift": it ended because its peers
#: were gone, which counts only if there is no other failure.
FailureKind = Literal["crash", "killed", "hang", "lost", "adrift"]
#: Kinds that are no evidence against the step or the reporting node.
_BLAMELESS: Final = ("lost", "adrift")

#: The job stops after this many failures of one step, or failed starts from one checkpoint.
SAME_STEP: Final = 3
#: The job stops after this many generations in a row that came no further.
NO_PROGRESS: Final = 6
#: Limit of the remembered failures; the rules need fewer.
_REMEMBERED: Final = 24
#: Limit of the runs of positions that a text names.
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The failure of one rank, in one generation.

    Attributes:
        generation: generation of its world.
        node: id of its node.
        rank: its number in that world; -1: the whole node.
        how: kind of the failure.
        step: the step that it was taking, from 1; 0: it was still starting.
        epoch: epoch of that step, from 0.
        positions: positions of the batch, in the order of the epoch; empty: unknown.
        error: the error in one line.
        usage: do not retry, because the job file or a setting is wrong.
        restored: step of the checkpoint from which its generation started; 0: from none.
        gave_up: do not retry, because it has waited for a teacher as long as allowed.
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
        """Whether it must not be retried."""
        return self.usage or self.gave_up

    @property
    def step_key(self) -> tuple[int, int]:
        """Key that is equal for failures on one step, and for failed starts from one checkpoint."""
        return (self.step, 0) if self.step else (0, self.restored)

    def in_words(self) -> str:
        """Return text such as "rank 1 on node a crashed on step 5 of epoch 2: error"."""
        if self.how == "lost":
            return f"node {self.node} was lost: {self.error or 'its lease ran out'}"
        did = {"crash": "crashed", "killed": "died", "hang": "hung", "adrift": "lost its peers"}
        ending = "gave up" if self.gave_up else did[self.how]
        where = f"on step {self.step} of epoch {self.epoch}" if self.step else "while it started"
        batch = f" ({positions_in_words(self.positions)})" if self.positions else ""
        return f"rank {self.rank} on node {self.node} {ending} {where}{batch}: {self.error}"


@dataclass(frozen=True, slots=True)
class ExcludeNode:
    """`node` takes part no more: the other nodes form the next world. `why` is the explanation."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class StopJob:
    """The job cannot continue.

    Attributes:
        report: why, and what to do.
        usage: the user's input can never work.
        gave_up: no teacher came in time; another start of the job may find one.
    """

    report: str
    usage: bool = False
    gave_up: bool = False


def react_to_failures(
    failures: Sequence[RankFailure], nodes: Set[str], min_nodes: int
) -> ExcludeNode | StopJob | None:
    """Return what to do after the latest generation of `failures`; None: restart the ranks.

    Args:
        failures: the job's failures in order; those of the last generation are new.
        nodes: nodes that could form the next generation, including failed ones.
        min_nodes: fewest nodes of a world.
    """
    if not failures:
        return None
    newest = [failure for failure in failures if failure.generation == failures[-1].generation]
    for failure in newest:
        if failure.usage:
            return StopJob(failure.error or failure.in_words(), usage=True)
        if failure.gave_up:
            return StopJob(failure.in_words(), gave_up=True)
    for failure in newest:
        if (
            failure.how not in _BLAMELESS
            and (times := _times_on_the_same_step(failure, failures)) >= SAME_STEP
        ):
            what = "that step" if failure.step else "that start"
            return StopJob(
                f"{failure.in_words()}; {what} failed {times} times, so it is not tried again"
            )
    if (generations := _without_progress(failures)) >= NO_PROGRESS:
        latest = _first_of_each_generation(failures)[-generations:]
        furthest = max(max(failure.step, failure.restored) for failure in latest)
        return StopJob(
            f"{newest[0].in_words()}; {generations} generations in a row came no further than step"
            f" {furthest}, so the job stops"
        )
    node = _node_that_failed_again(failures)
    if node and len(nodes - {node}) >= min_nodes:
        return ExcludeNode(node, f"its ranks failed twice in a row: {newest[0].in_words()}")
    return None


def remembered(failures: Sequence[RankFailure]) -> tuple[RankFailure, ...]:
    """Return the failures that `react_to_failures` may need after later generations.

    All ranks of a large world may fail on one step; only one of these failures is remembered.
    """
    firsts: dict[tuple[object, ...], RankFailure] = {}
    for failure in failures:
        firsts.setdefault(
            (failure.generation, failure.step_key, failure.how in _BLAMELESS), failure
        )
    return tuple(firsts.values())[-_REMEMBERED:]


def positions_in_words(positions: Iterable[int]) -> str:
    """Return text such as "positions 4-9, 17": runs are joined, a long list is cut."""
    ranges = Ranges.of_numbers(positions)
    texts = [
        str(start) if start == stop - 1 else f"{start}-{stop - 1}" for start, stop in ranges.pairs
    ]
    more = f" and {len(texts) - _SHOWN} more runs" if len(texts) > _SHOWN else ""
    return f"position{'s' if ranges.count > 1 else ''} {', '.join(texts[:_SHOWN])}{more}"


def _times_on_the_same_step(failure: RankFailure, failures: Sequence[RankFailure]) -> int:
    return len(
        {
            other.generation
            for other in failures
            if other.how not in _BLAMELESS and other.step_key == failure.step_key
        }
    )


def _first_of_each_generation(failures: Sequence[RankFailure]) -> list[RankFailure]:
    """Return the first failure of each generation; the others are often its consequences."""
    firsts: dict[int, RankFailure] = {}
    for failure in failures:
        firsts.setdefault(failure.generation, failure)
    return list(firsts.values())


def _reached(failure: RankFailure) -> tuple[int, bool]:
    """Return how many steps were done when the rank failed, and whether it was taking another."""
    return max(failure.step - 1, failure.restored), failure.step > 0


def _without_progress(failures: Sequence[RankFailure]) -> int:
    """Return the number of latest failed generations of which none came further than the first."""
    firsts = _first_of_each_generation(failures)
    count, furthest = 1, _reached(firsts[0])
    for failure in firsts[1:]:
        count = 1 if _reached(failure) > furthest else count + 1
        furthest = max(furthest, _reached(failure))
    return count


def _node_that_failed_again(failures: Sequence[RankFailure]) -> str:
    """Return the node that failed first in the last two generations without progress, or ""."""
    firsts = _first_of_each_generation(failures)
    if len(firsts) < 2 or firsts[-1].how in _BLAMELESS or firsts[-2].how in _BLAMELESS:
        return ""
    before, last = firsts[-2:]
    again = before.node == last.node and last.generation == before.generation + 1
    return last.node if again and _reached(last) <= _reached(before) else ""
