"""A local batch in pieces that fit a device, and what each piece's gradient weighs.

So the total batch of a step is what the job says, whatever the world and whatever fits: gradients
of the mean over each piece, times its weight, add up to that of the mean over the rows of all
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of a local batch.

    Attributes:
        start: first row.
        stop: behind the last one.
        total: rows of the step, of all ranks together.
    """

    start: int
    stop: int
    total: int

    @property
    def weight(self) -> float:
        """Of the mean over this piece within the mean over all rows; exactly 1 where it is all."""
        return (self.stop - self.start) / self.total


def pieces(rows: int, total: int, most: int | None) -> list[Piece]:
    """A local batch of `rows` in as few pieces of at most `most` rows as can be, of like sizes.

    Args:
        rows: of this rank in this step; 0: there are no pieces.
        total: of all ranks in this step.
        most: rows that one forward pass takes; None: any number.
    """
    if rows == 0:
        return []
    count = 1 if most is None else -(-rows // most)
    return [Piece(rows * part // count, rows * (part + 1) // count, total) for part in range(count)]
