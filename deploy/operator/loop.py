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
from ...scheduler.backoff import delay_s
from .metrics import OperatorMetrics

log = logging.getLogger(__name__)

#: Seconds between two turns, at least: many changes at once are one turn.
_PAUSE_S: Final = 0.1
#: Bounds of the pauses after turns that failed, seconds.
_BASE_S, _CAP_S = 1.0, 30.0


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
    """Turns of all parts; each part's trouble is its own.

    Args:
        parts: by name, in their order.
        leads: whether this operator may act.
        interval_s: between two turns, where nothing wakes it.
        wake: ends a pause.
        metrics: told of each turn.
        rng: spreads the pauses after failures.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        leads: Callable[[], bool],
        interval_s: float,
        wake: Wake,
        metrics: OperatorMetrics,
        rng: random.Random | None = None,
    ) -> None:
        self._parts = parts
        self._leads = leads
        self._interval_s = interval_s
        self._wake = wake
        self._metrics = metrics
        self._rng = rng or random.Random()
        self._failures = 0
        self._trouble: dict[str, str] = {}

    def run(self, stop: Stop) -> None:
        """Go on until `stop` is requested."""
        while not stop.requested:
            pause_s = self._interval_s
            if self._leads():
                well = self.turn(time.time())
                if not well:
                    pause_s = _PAUSE_S + delay_s(self._failures, self._rng, _BASE_S, _CAP_S)
            else:
                self._failures = 0  # as one that begins, when it leads again
            if stop.wait(_PAUSE_S):
                break
            if self._failures:
                stop.wait(pause_s)  # what changes meanwhile does not make it any better
            else:
                self._wake.wait(stop, pause_s - _PAUSE_S)

    def turn(self, now: float) -> bool:
        """One turn; False: a part of it failed and is to be tried again."""
        well = True
        for name, part in self._parts.items():
            began_s = time.perf_counter()
            done = self._part(name, part, now)
            self._metrics.turned(name, done, time.perf_counter() - began_s)
            well &= done
        self._failures = 0 if well else self._failures + 1
        return well

    def _part(self, name: str, part: Part, now: float) -> bool:
        try:
            part.turn(now)
        except LeaseSuperseded as error:
            log.info("%s", error)
            return True  # it is another one's turn
        except EdlError as error:
            if self._trouble.get(name) != str(error):
                log.warning("%s wait: %s", name, error)
            self._trouble[name] = str(error)
            return False
        except Exception:  # a resource that nobody has thought of must not stop all others for good
            log.exception("%s failed; they are tried again", name)
            return False
        if self._trouble.pop(name, ""):
            log.info("%s go on", name)
        return True
