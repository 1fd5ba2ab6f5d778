"""What all in a simulated mesh shares: scenario, time, chance, trace, and networks."""

from __future__ import annotations

from dataclasses import dataclass

from .clock import Clock, Generator, Jitter, Seeding
from .scenario import Link, Scenario
from .trace import Trace


@dataclass(frozen=True, slots=True)
class Environment:
    """One run.

    Attributes:
        scenario: what is played.
        seeding: makes generators; each is named by who draws and for what.
        clock: on which all happens.
        trace: hears of it.
    """

    scenario: Scenario
    seeding: Seeding
    clock: Clock
    trace: Trace

    def rng(self, who: str, what: str) -> Generator:
        """The generator of one machine for one kind of chance."""
        return self.seeding(f"{self.scenario.seed}/{who}/{what}")

    def jitter(self, who: str, what: str, deviation: float) -> Jitter:
        """The factors of one kind of time of one machine."""
        return Jitter(self.rng(who, what), deviation)


class Port:
    """The network of one machine, both directions apart.

    Args:
        env: of the run.
        name: of the machine.
        link: what it can do; None: as the scenario says.
    """

    __slots__ = ("_in_free_at", "_jitter", "_link", "_out_free_at")

    def __init__(self, env: Environment, name: str, link: Link | None) -> None:
        self._link = link or env.scenario.link
        self._jitter = env.jitter(name, "link", self._link.jitter)
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
