"""Checkpoints: when to save one, their history, and which ones may be removed.

The checkpoints of an elastic training form a *history*: a line in which each continues the previous
one. A save joins the history by a compare-and-set on the job board, which succeeds only while the
generation that made the save is the current one. Saves that an earlier generation finishes too late
stay outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

#: Default part of the training's time that saves may take.
OVERHEAD: Final = 0.02
#: Default number of checkpoints that a save keeps.
DEFAULT_KEEP: Final = 3
#: Shortest interval in seconds that `SaveSchedule.overhead` may lead to: even saves that cost the
#: training little keep a disk busy.
MIN_INTERVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """How often to save: in intervals that the user sets, or as often as an overhead allows.

    Attributes:
        every_steps: steps between saves; None: save by time only.
        every_s: seconds between saves; None: save by steps only. If both are set, the next save is
            due as soon as one of the two intervals has passed.
        overhead: if both are None, the part of the time that saves may take, from 0 to below 1; 0:
            no saves.

    Raises:
        ValueError: an interval is not positive, or `overhead` is out of range.
    """

    every_steps: int | None = None
    every_s: float | None = None
    overhead: float = OVERHEAD

    def __post_init__(self) -> None:
        for name, value in (("every_steps", self.every_steps), ("every_s", self.every_s)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")
        if not 0 <= self.overhead < 1:
            raise ValueError(f"overhead must be from 0 to below 1, not {self.overhead}")

    def due(
        self, step: int, now_s: float, last_step: int, last_s: float, costs_s: Sequence[float] = ()
    ) -> bool:
        """Whether to save `step`, which was just finished at `now_s`.

        Args:
            step: number of finished steps.
            now_s: the time, on any clock.
            last_step: the step that was saved last, or at which this training began.
            last_s: time of that step.
            costs_s: seconds by which recent saves delayed the training; empty: unknown, so a
                schedule by `overhead` saves at once.
        """
        if step <= last_step:
            return False  # nothing new
        if self.every_steps is None and self.every_s is None:
            if not self.overhead or not costs_s:
                return self.overhead > 0
            # The minimum: a save that stalled is not typical.
            return now_s - last_s >= max(MIN_INTERVAL_S, min(costs_s) / self.overhead)
        by_steps = self.every_steps is not None and step - last_step >= self.every_steps
        return by_steps or (self.every_s is not None and now_s - last_s >= self.every_s)


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint in the history of a training.

    Attributes:
        name: name of its folder.
        step: step of the training.
        digest: SHA-256 of its manifest, in hexadecimal; empty: it is not written yet.
        sequence: position in the history, from 1; 0: it is not written yet, or a version without
            histories wrote it.
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


def expected_digest(origin: CheckpointEntry, history: CheckpointHistory) -> str:
    """Return the digest that a generation's starting checkpoint must have; "": not known yet.

    Args:
        origin: the checkpoint from which the generation starts. If it has no digest, it was only a
            snapshot in the memory of a node, which writes it as the first checkpoint that the
            generation adds to the history.
        history: from the job board.
    """
    newest = history.newest
    digest = newest.digest if newest is not None and newest.name == origin.name else ""
    return origin.digest or digest


def may_join(history: CheckpointHistory, step: int, generation: int) -> bool:
    """Whether a save of the current generation continues the history.

    Args:
        history: from the job board.
        step: step of the save.
        generation: the current generation, which made the save.
    """
    newest = history.newest
    return newest is None or newest.generation != generation or newest.step < step


def may_continue(after: str, generation: int, newest: str, last_generation: int | None) -> bool:
    """Whether the next generation may start from a save that has not joined the history.

    Args:
        after: name of the checkpoint that the save continues; empty: it is the first.
        generation: generation that saved it.
        newest: name of the newest checkpoint of the history; empty: there is none.
        last_generation: number of the last generation; None: the job board does not know it.
    """
    return after == newest and last_generation in (None, generation)


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in a repository.

    Attributes:
        name: name of its folder.
        step: step of the training.
        made_s: when it was written.
        usable: a training can continue from it, as far as known.
        sequence: position in the history; 0: none.
        pending: it may still join the history.
    """

    name: str
    step: int
    made_s: float
    usable: bool = True
    sequence: int = 0
    pending: bool = False

    @property
    def order(self) -> tuple[int, int, float, str]:
        """Sort key from the oldest to the newest."""
        return self.sequence, self.step, self.made_s, self.name


def newest_first(checkpoints: Sequence[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Return checkpoints in the order in which a start of the training tries them."""
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.order, reverse=True)


def to_prune(checkpoints: Sequence[StoredCheckpoint], keep: int) -> list[str]:
    """Return the names of checkpoints that may be removed, the oldest first.

    The `keep` newest usable checkpoints stay, and all that are newer than the oldest of these, and
    all that may still join the history. So a damaged checkpoint stays for inspection until `keep`
    usable ones are newer.

    Raises:
        ValueError: `keep` is below 1: the newest usable checkpoint always stays.
    """
    if keep < 1:
        raise ValueError(f"at least one checkpoint is kept, not {keep}")
    usable = [checkpoint for checkpoint in newest_first(checkpoints) if checkpoint.usable]
    if len(usable) < keep:
        return []
    oldest = usable[keep - 1].order
    old = [
        checkpoint
        for checkpoint in reversed(newest_first(checkpoints))
        if checkpoint.order < oldest
    ]
    return [checkpoint.name for checkpoint in old if not checkpoint.pending]


def due_without_board(last_s: float, since_s: float, now_s: float) -> bool:
    """Whether to write another checkpoint while the job board is unavailable.

    Such a checkpoint cannot join the history yet, and none may be removed, so all stay on disk.
    Each one is due when the outage has lasted twice as long as at the one before. So there are few
    checkpoints, and a crash loses at most half of what was trained during the outage.

    Args:
        last_s: when the latest one was written, on any clock.
        since_s: since when the job board is unavailable.
        now_s: the time.
    """
    return now_s - last_s >= last_s - since_s
