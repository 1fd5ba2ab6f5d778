"""When to save a checkpoint, when to try again, and which ones have served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: After which no wait of practical use is still below its cap.
_MOST_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often a training is saved; both may be given, then whichever comes first.

    Attributes:
        every_steps: steps from one save to the next; None: steps do not count.
        every_s: seconds from one save to the next; None: time does not count.

    Raises:
        ValueError: one of them is not positive.
    """

    every_steps: int | None = None
    every_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("every_steps", self.every_steps), ("every_s", self.every_s)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")

    def due(self, step: int, now_s: float, last_step: int, last_s: float) -> bool:
        """Whether `step`, which was just done at `now_s`, is to be saved.

        Args:
            step: steps done.
            now_s: the time, on any clock.
            last_step: the step that was saved last, or that this training began at.
            last_s: when that was.
        """
        if step <= last_step:
            return False  # there is nothing new
        by_steps = self.every_steps is not None and step - last_step >= self.every_steps
        return by_steps or (self.every_s is not None and now_s - last_s >= self.every_s)


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that lies in a repository.

    Attributes:
        name: of its folder.
        step: of the training.
        made_s: when it was written.
        whole: whether it is worth something, as far as is known.
    """

    name: str
    step: int
    made_s: float
    whole: bool = True

    @property
    def order(self) -> tuple[int, float, str]:
        """Grows from the oldest to the newest."""
        return self.step, self.made_s, self.name


def newest_first(found: Sequence[Found]) -> list[Found]:
    """In the order in which a start tries them."""
    return sorted(found, key=lambda one: one.order, reverse=True)


def to_prune(found: Sequence[Found], keep: int) -> list[str]:
    """Names of those that may go, the oldest first.

    What stays: the `keep` newest whole ones, and what is newer than the oldest of these. So one
    that is damaged stays to be looked into until so many whole ones are newer.

    Raises:
        ValueError: `keep` is below 1; the newest whole checkpoint always stays.
    """
    if keep < 1:
        raise ValueError(f"at least one checkpoint is kept, not {keep}")
    whole = [one for one in newest_first(found) if one.whole]
    if len(whole) < keep:
        return []
    oldest = whole[keep - 1].order
    return [one.name for one in reversed(newest_first(found)) if one.order < oldest]


def retry_s(failures: int, base_s: float = 1.0, cap_s: float = 60.0) -> float:
    """Seconds to wait before a save is tried again that has failed `failures` times in a row.

    Raises:
        ValueError: it has not failed.
    """
    if failures < 1:
        raise ValueError("what has not failed is not tried again")
    return min(cap_s, base_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
