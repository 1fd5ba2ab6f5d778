"""When to save a checkpoint, the history of a training, and what leaves it.

Checkpoints of an elastic training form a *history*: one line, in which each continues the one
before it. A save joins it by a compare-and-set at the job board, which counts only while the
generation that trained it is the current one. A save of a generation that is over stays outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

#: The part of the training's time that saves may take unless the user says how often to save.
OVERHEAD: Final = 0.02
#: Saves that cost next to nothing still keep a disk busy: they are so many seconds apart.
LEAST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """How often a training is saved: as the user says, or as often as an overhead allows.

    Attributes:
        every_steps: steps from one save to the next; None: steps do not count.
        every_s: seconds from one save to the next; None: time does not count. Where both are
            given, whichever comes first.
        overhead: where neither is given: the part of the time that saves may take, from 0 to below
            1; 0: none is made.

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
        self,
        step: int,
        now_s: float,
        last_step: int,
        last_s: float,
        costs_s: Sequence[float] = (),
    ) -> bool:
        """Whether `step`, which was just done at `now_s`, is to be saved.

        Args:
            step: steps done.
            now_s: the time, on any clock.
            last_step: the step that was saved last, or that this training began at.
            last_s: when that was.
            costs_s: seconds that the last saves held the training up; empty: there was none, so
                the first step is saved.
        """
        if step <= last_step:
            return False  # there is nothing new
        if self.every_steps is None and self.every_s is None:
            if not self.overhead or not costs_s:
                return self.overhead > 0
            # The least of them: one that stalled says little of the next.
            return now_s - last_s >= max(LEAST_S, min(costs_s) / self.overhead)
        by_steps = self.every_steps is not None and step - last_step >= self.every_steps
        return by_steps or (self.every_s is not None and now_s - last_s >= self.every_s)


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint in the history of a training.

    Attributes:
        name: of its folder.
        step: of the training.
        digest: SHA-256 of its manifest, in hexadecimal; empty: it is still to be written.
        sequence: its place in the history, from 1; 0: of a version that kept no history.
        generation: that saved it.
    """

    name: str
    step: int
    digest: str = ""
    sequence: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointHistory:
    """What the job board knows of the history.

    Attributes:
        newest: the newest checkpoint; None: there is none.
        dropped: names of checkpoints that have left the history, and may be removed at any time.
    """

    newest: CheckpointEntry | None = None
    dropped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """{}: nothing is known."""
        return asdict(self) if self.newest or self.dropped else {}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` gave. Raises TypeError where it is something else."""
        newest = value.get("newest")
        return cls(
            None if newest is None else CheckpointEntry(**newest), tuple(value.get("dropped", ()))
        )


def may_join(history: CheckpointHistory, step: int, generation: int) -> bool:
    """Whether a save of the current generation continues the history.

    Args:
        history: as the board has it.
        step: of the save.
        generation: the current one, which made the save.
    """
    newest = history.newest
    return newest is None or newest.generation != generation or newest.step < step


def may_continue(after: str, generation: int, newest: str, ended: int | None) -> bool:
    """Whether the next generation may begin with a save that has not joined the history.

    Args:
        after: name of the checkpoint that the save continues; empty: it is the first.
        generation: that saved it.
        newest: name of the newest checkpoint of the history; empty: there is none.
        ended: the generation that was the last one; None: the board knows none.
    """
    return after == newest and ended in (None, generation)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint that lies in a repository.

    Attributes:
        name: of its folder.
        step: of the training.
        made_s: when it was written.
        whole: whether a training may go on from it, as far as is known.
        sequence: its place in the history; 0: it has none.
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
        """Grows from the oldest to the newest."""
        return self.sequence, self.step, self.made_s, self.name


def newest_first(found: Sequence[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """In the order in which a start tries them."""
    return sorted(found, key=lambda one: one.order, reverse=True)


def to_prune(found: Sequence[StoredCheckpoint], keep: int) -> list[str]:
    """Names of those that may go, the oldest first.

    What stays: the `keep` newest whole ones, what is newer than the oldest of these, and what may
    still join the history. So one that is damaged stays to be looked into until so many whole ones
    are newer.

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

    While the job board is away nothing may be removed, so each one stays on the disk. They are
    written at times that double: the disk gets few, and a crash costs at most half of the time that
    the board was away.

    Args:
        last_s: when the last one was written, on any clock.
        since_s: since when the board is away.
        now_s: the time.
    """
    return now_s - last_s >= last_s - since_s
