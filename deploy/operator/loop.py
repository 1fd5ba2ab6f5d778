"""The operator's loop: while it leads, one turn after another, sooner when something changes."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ...errors import EdlError, LeaseSuperseded
from ...lifecycle import LOOK_UP_S, Stop
from ...scheduler.backoff import RandomLike, RetryPause, next_retry_s
from .metrics import OperatorMetrics
from .troubles import Troubles

log = logging.getLogger(__name__)

#: Seconds between two turns, at least: many changes at once are one turn.
_PAUSE_S: Final = 0.1
#: Bounds of a part's pauses after turns that failed, seconds.
_BASE_S, _CAP_S = 2.0, 30.0


class Part(Protocol):
    """What a turn consists of."""

    def turn(self, now: float) -> None:
        """Look at everything, decide, and act; `now`: seconds since 1970."""


class Wake:
    """Ends the loop's pause early; any thread may call it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        self._event.set()

    def wait(self, stop: Stop, seconds: float) -> None:
        """Wait until it was called, `stop` is requested, or so long."""
        until = time.monotonic() + seconds
        while not stop.requested and (left := until - time.monotonic()) > 0:
            if self._event.wait(min(left, LOOK_UP_S)):
                break
        self._event.clear()


class Loop:
    """Turns of all parts; each part's trouble is its own, and so is its rest after it.

    Args:
        parts: by name, in their order.
        leads: whether this operator may act.
        interval_s: between two turns, where nothing wakes it.
        wake: ends a pause.
        metrics: told of each turn.
        rng: spreads the pauses after failures.
        clock: seconds that do not go back.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        leads: Callable[[], bool],
        interval_s: float,
        wake: Wake,
        metrics: OperatorMetrics,
        rng: RandomLike = random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._leads = leads
        self._interval_s = interval_s
        self._wake = wake
        self._metrics = metrics
        self._rng, self._clock = rng, clock
        self._rests = dict.fromkeys(parts, RetryPause())
        self._troubles = Troubles()

    def run(self, stop: Stop) -> None:
        """Go on until `stop` is requested."""
        while not stop.requested:
            pause_s = self._interval_s
            if self._leads():
                pause_s = self.turn(time.time())
            else:  # as one that begins, when it leads again
                self._rests = dict.fromkeys(self._parts, RetryPause())
            if stop.wait(_PAUSE_S):
                break
            self._wake.wait(stop, pause_s - _PAUSE_S)

    def turn(self, now: float) -> float:
        """One turn of the parts that do not rest: what changes makes those no better that do.

        Returns:
            Seconds until the next turn, where nothing wakes the loop before.
        """
        for name, part in self._parts.items():
            rest = self._rests[name]
            if rest.until_s > self._clock():
                continue
            began_s = time.perf_counter()
            well = self._part(name, part, now)
            self._metrics.turned(name, well, time.perf_counter() - began_s)
            self._rests[name] = (
                RetryPause() if well else rest.failed(self._clock(), self._rng, _BASE_S, _CAP_S)
            )
        return next_retry_s(self._rests.values(), self._clock(), self._interval_s)

    def _part(self, name: str, part: Part, now: float) -> bool:
        try:
            part.turn(now)
        except LeaseSuperseded as error:
            log.info("%s", error)
            return True  # it is another one's turn
        except EdlError as error:
            self._troubles.tell(log, name, f"{name} wait", error)
            return False
        except Exception:  # a resource that nobody has thought of must not stop all others for good
            log.exception("%s failed; they are tried again", name)
            return False
        if self._troubles.over(name):
            log.info("%s go on", name)
        return True
