"""Admission: so many requests at once, and who comes beyond is told when there will be room."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..scheduler.batching import promise_s
from .request import Overloaded


class Slots:
    """Places for requests that wait or are labelled; any thread may take one.

    Args:
        count: how many there are.
        sample_s: asked for the seconds in which all devices together label one sample.
        clock: seconds, monotonic.
    """

    def __init__(
        self, count: int, sample_s: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._count = count
        self._sample_s = sample_s
        self._clock = clock
        self._lock = threading.Lock()
        self._taken = 0
        self._samples = 0
        self._promised_s = 0.0

    def take(self, samples: int) -> None:
        """Take a slot for one request of `samples`, to be given back.

        Raises:
            Overloaded: every slot is taken; it says when to come back.
        """
        with self._lock:
            if self._taken >= self._count:
                raise self._overloaded()
            self._taken += 1
            self._samples += samples

    def give_back(self, samples: int) -> None:
        """The slot of a request of `samples` is free."""
        with self._lock:
            self._taken -= 1
            self._samples -= samples

    def _overloaded(self) -> Overloaded:
        now = self._clock()
        interval_s = self._samples / self._taken * self._sample_s()
        self._promised_s = promise_s(now, self._promised_s, interval_s, self._count)
        after_s = self._promised_s - now
        return Overloaded(
            f"all {self._count} slots of this teacher are taken: try again in {after_s:.3g} s",
            after_s,
        )
