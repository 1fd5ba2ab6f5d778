"""Checkpoints: when to save one, their history, and which ones may be removed.

The checkpoints of an elastic training form a *history*: a line in which each continues the previous
one. A save joins it by a compare-and-set at the job board, which succeeds only while the generation
that trained it is the current one. Saves of an earlier generation stay outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

#: Default part of the training's time that saves may take.
OVERHEAD: Final = 0.02
#: Default number of checkpoints that a save keeps.
DEFAULT_KEEP: Final = 3
#: Shortest time in seconds between two saves: even cheap ones keep a disk busy.
LEAST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """How often to save: as the user says, or as an overhead allows.

    Attributes:
        every_steps: steps between saves; None: any.
        every_s: seconds between saves; None: any. With both, whichever comes first.
        overhead: without both: part of the time that saves may take, from 0 to below 1; 0: no
            saves.

    Raises:
        ValueError: one of the first two is not positive, or the last one out of range.
    """

    every_steps: int | None = None
    every_s: float | None = None
    overhead: float = OVERHEAD

    def __post_init__(self) -> None:
        for name, value in (("every_steps", self.every_steps), ("every_s", self.every_s)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")
        if not 0 <= self.overhead < 1:
            raise ValueError(f"overhead is from 0 to below 1, not {self.overhead}")

    def due(
        self, step: int, now_s: float, last_step: int, last_s: float, costs_s: Sequence[float] = ()
    ) -> bool:
        """Whether to save `step`, which was just finished at `now_s`.

        Args:
            step: number of finished steps.
            now_s: the time, on any clock.
            last_step: the step saved last, or at which this training began.
            last_s: its time.
            costs_s: seconds for which recent saves held up the training; empty: none yet, so the
                first step is saved.
        """
        if step <= last_step:
            return False  # nothing new
        if self.every_steps is None and self.every_s is None:
            if not self.overhead or not costs_s:
                return self.overhead > 0
            # The minimum: a save that stalled is not typical.
            return now_s - last_s >= max(LEAST_S, min(costs_s) / self.overhead)
        by_steps = self.every_steps is not None and step - last_step >= self.every_steps
        return by_steps or (self.every_s is not None and now_s - last_s >= self.every_s)


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint in the history of a training.

    Attributes:
        name: name of its folder.
        step: step of the training.
        digest: SHA-256 of its manifest, in hexadecimal; empty: it is not written yet.
        sequence: position in the history, from 1; 0: from a version without a history.
        generation: generation that saved it.
    """

    name: str
    step: int
    digest: str = ""
    sequence: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointHistory:
    """The history, as far as the job board knows it.

    Attributes:
        newest: the newest checkpoint; None: there is none.
        dropped: names of checkpoints that have left the history and may be removed at any time.
    """

    newest: CheckpointEntry | None = None
    dropped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a mapping; {}: nothing is known."""
        return asdict(self) if self.newest or self.dropped else {}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse `to_json`. Raises TypeError or AttributeError for anything else."""
        newest = value.get("newest")
        return cls(
            None if newest is None else CheckpointEntry(**newest), tuple(value.get("dropped", ()))
        )


def expected_digest(origin: CheckpointEntry, history: CheckpointHistory) -> str:
    """Return the digest that the checkpoint of a generation must have; "": it is not known yet.

    Args:
        origin: the checkpoint as the generation names it. Without a digest, a node must write it
            first: the generation adds it to the history before any other.
        history: as the board has it.
    """
    newest = history.newest
    joined = newest.digest if newest is not None and newest.name == origin.name else ""
    return origin.digest or joined


def may_join(history: CheckpointHistory, step: int, generation: int) -> bool:
    """Whether a save of the current generation continues the history.

    Args:
        history: as the board has it.
        step: step of the save.
        generation: the current generation, which made the save.
    """
    newest = history.newest
    return newest is None or newest.generation != generation or newest.step < step


def may_continue(after: str, generation: int, newest: str, ended: int | None) -> bool:
    """Whether the next generation may start from a save that has not joined the history.

    Args:
        after: name of the checkpoint that the save continues; empty: it is the first.
        generation: generation that saved it.
        newest: name of the newest checkpoint of the history; empty: there is none.
        ended: the last generation; None: unknown to the board.
    """
    return after == newest and ended in (None, generation)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in a repository.

    Attributes:
        name: name of its folder.
        step: step of the training.
        made_s: when it was written.
        whole: a training can continue from it, as far as known.
        sequence: position in the history; 0: none.
        pending: it may still join the history.
    """

    name: str
    step: int
    made_s: float
    whole: bool = True
    sequence: int = 0
    pending: bool = False

    @property
    def order(self) -> tuple[int, int, float, str]:
        """Sort key from the oldest to the newest."""
        return self.sequence, self.step, self.made_s, self.name


def newest_first(found: Sequence[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Return checkpoints in the order in which a start of the training tries them."""
    return sorted(found, key=lambda one: one.order, reverse=True)


def to_prune(found: Sequence[StoredCheckpoint], keep: int) -> list[str]:
    """Return the names of checkpoints that may be removed, the oldest first.

    The `keep` newest whole ones stay, everything newer than the oldest of these, and what may still
    join the history. So a damaged one stays for inspection until `keep` whole ones are newer.

    Raises:
        ValueError: `keep` is below 1; the newest whole checkpoint always stays.
    """
    if keep < 1:
        raise ValueError(f"at least one checkpoint is kept, not {keep}")
    whole = [one for one in newest_first(found) if one.whole]
    if len(whole) < keep:
        return []
    oldest = whole[keep - 1].order
    old = [one for one in reversed(newest_first(found)) if one.order < oldest]
    return [one.name for one in old if not one.pending]


def due_beside(last_s: float, since_s: float, now_s: float) -> bool:
    """Whether to write one more checkpoint that cannot join the history yet.

    While the job board is away nothing may be removed, so each one stays on disk. The intervals
    double: there are few of them, and a crash loses at most half of the time without the board.

    Args:
        last_s: when the latest one was written, on any clock.
        since_s: since when the board is away.
        now_s: the time.
    """
    return now_s - last_s >= last_s - since_s
