"""What a timeline shows of each batch: from its pull until the training loop has it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .trace_pen import Pen


@dataclass(slots=True)
class _Life:
    pulled_at: float
    samples: int
    labelled_at: float | None = None


class Lives:
    """Draws each life when it is over, whole, so that no half of a file has half of one.

    It is drawn as "batch", with "ready" in it, from when it could be delivered. Of a batch that an
    engine before this one had pulled it begins when this one was told of it.
    """

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self._lives: dict[int, _Life] = {}
        self._now = 0.0

    def pulled(self, number: int, at: float, samples: int) -> None:
        """A batch has come."""
        self._lives[number] = _Life(at, samples)

    def labelled(self, number: int) -> None:
        """It could be delivered from now on."""
        if (life := self._lives.get(number)) is not None:
            life.labelled_at = time.monotonic()

    def recalled(self, number: int) -> None:
        """It could not, after all."""
        if (life := self._lives.get(number)) is not None:
            life.labelled_at = None

    def taken(self, number: int, at: float) -> None:
        """The training loop has it."""
        if (life := self._lives.pop(number, None)) is not None:
            self._draw(number, life, at, "delivered")

    def look(self, now: float) -> None:
        """So late is it."""
        self._now = now

    def leave(self) -> None:
        """The epoch was left, or the stream ends: so do the lives that there are."""
        for number, life in self._lives.items():
            self._draw(number, life, max(self._now, life.pulled_at), "left")
        self._lives.clear()

    def _draw(self, number: int, life: _Life, end: float, outcome: str) -> None:
        told = {"number": number, "samples": life.samples, "outcome": outcome}
        self._pen.life("batch", number, life.pulled_at, end, told)
        if life.labelled_at is not None:
            self._pen.life("ready", number, min(life.labelled_at, end), end)
