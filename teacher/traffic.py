"""Counts what goes through a server: what a heartbeat reports, and what a drain waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from ..scheduler.rates import RecentRate


class Traffic:
    """Thread-safe counters of one server.

    Args:
        clock: seconds, monotonic.
        on_labelled: told the samples of each batch, and the seconds that it took on the device.

    Attributes:
        answered: requests answered with labels.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_labelled: Callable[[int, float], None] = lambda samples, device_seconds: None,
    ) -> None:
        self.answered = 0
        self._clock = clock
        self._on_labelled = on_labelled
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._watched = 0  # how many wait for a change
        self._in_flight = 0
        self._last_s = clock()
        self._rate = RecentRate()

    def request(self) -> Self:
        """To be entered for one request, from its arrival to its answer."""
        return self

    def __enter__(self) -> None:
        with self._lock:
            self._in_flight += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._in_flight -= 1
            self._last_s = self._clock()
            if self._watched:
                self._changed.notify_all()

    def count_answer(self, samples: int, device_seconds: float) -> None:
        """One batch of `samples` was labelled in `device_seconds`."""
        with self._lock:
            self.answered += 1
            self._rate.add(samples, self._clock())
        self._on_labelled(samples, device_seconds)

    @property
    def in_flight(self) -> int:
        """Requests that have arrived and are not answered."""
        return self._in_flight

    @property
    def samples_per_second(self) -> float:
        """Over the last seconds."""
        with self._lock:
            return self._rate.value(self._clock())

    def wait_quiet(self, quiet_s: float, timeout_s: float) -> bool:
        """Wait until nothing is in flight and, from now on, nothing came for `quiet_s`.

        Returns:
            False when `timeout_s` passed first.
        """
        with self._changed:
            start = self._clock()
            deadline = start + timeout_s
            while True:
                now, quiet_at = self._clock(), max(start, self._last_s) + quiet_s
                if self._in_flight == 0 and now >= quiet_at:
                    return True
                if now >= deadline:
                    return False
                until = deadline if self._in_flight else min(deadline, quiet_at)
                self._watched += 1
                self._changed.wait(until - now)
                self._watched -= 1
