"""What transfers cost: each machine sends, and receives, one thing after the other."""

from __future__ import annotations

from .chance import Jitter
from .scenario import Link


class Port:
    """The network of one machine, both directions apart.

    Args:
        link: what it can do.
        jitter: of its latency.
    """

    __slots__ = ("_in_free_at", "_jitter", "_link", "_out_free_at")

    def __init__(self, link: Link, jitter: Jitter) -> None:
        self._link = link
        self._jitter = jitter
        self._out_free_at = self._in_free_at = 0.0

    def arrives_at(self, to: Port, nbytes: float, now: float) -> float:
        """When what is sent now has arrived as a whole; it is booked.

        It goes through both machines at once, as fast as the slower of them lets it, after what
        was sent before it from here, and what is on its way to there.
        """
        begins = max(now, self._out_free_at)
        arrives = begins
        if (speed := self._link.bandwidth_bytes_per_s) is not None:
            arrives = self._out_free_at = begins + nbytes / speed
        if (speed := to._link.bandwidth_bytes_per_s) is not None:
            taken = max(begins, to._in_free_at) + nbytes / speed
            arrives = to._in_free_at = max(arrives, taken)
        slower = self if self._link.latency_s >= to._link.latency_s else to
        return arrives + slower._link.latency_s * slower._jitter.factor()
