"""Shared parts of a simulated mesh: virtual time, random numbers, networks, and the event trace.

Each kind of random number of each machine has a stream of its own. So the draws of one machine do
not depend on those of others, and a scenario with one teacher more draws the same for all others.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from math import inf, log, log1p, sqrt
from typing import Any, Protocol

from .result import LabelledRequest, SimulatedEvent, Stepped
from .scenario import NetworkLink, Scenario


class VirtualClock:
    """Actions in the order of their times; of equal times, in the order in which they were planned.

    Attributes:
        now: virtual seconds since the beginning.
        events: actions that have happened.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._planned = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Have it happen then; at once, where that is past."""
        self._planned += 1
        heappush(self._agenda, (max(moment, self.now), self._planned, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have it happen so much later (>= 0)."""
        self._planned += 1
        heappush(self._agenda, (self.now + seconds, self._planned, action))

    @property
    def next_at(self) -> float:
        """When something happens next; infinite: never."""
        return self._agenda[0][0] if self._agenda else inf

    def step(self) -> None:
        """Let the next one happen; there has to be one."""
        self.now, _, action = heappop(self._agenda)
        self.events += 1
        action()


class Generator(Protocol):
    """What is asked of a generator: `random.Random` has it."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """A number whose logarithm is normal."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Put a list into a random order, in place."""


#: Makes a generator that its argument alone determines: the class `random.Random` is one.
Seeding = Callable[[str], Generator]


class Jitter:
    """Factors that times are multiplied with: of mean 1 and this standard deviation.

    Args:
        generator: where they are drawn from.
        deviation: 0: each is 1, and nothing is drawn.
    """

    __slots__ = ("_generator", "_mu", "_sigma")

    def __init__(self, generator: Generator, deviation: float) -> None:
        variance = log1p(deviation**2)
        self._generator = generator
        self._mu, self._sigma = -variance / 2, sqrt(variance)

    def factor(self) -> float:
        """The next one."""
        if not self._sigma:
            return 1.0
        return self._generator.lognormvariate(self._mu, self._sigma)


def lifetime_s(generator: Generator, leave_per_minute: float) -> float:
    """Seconds until a machine leaves of which this share (0 < share <= 1) leaves in a minute.

    At any moment it is equally likely to leave in the next one, however long it has been there.
    """
    rate = -log(max(1 - leave_per_minute, 1e-9)) / 60
    return -log(1 - generator.random()) / rate


class EventTrace:
    """Hears all that happens, in order.

    Args:
        clock: tells when.
        keep_batches: keep every request and step too; they are hashed in any case.

    Attributes:
        happenings: of the control plane.
        labelled, stepped: requests and steps, if they are kept.
    """

    def __init__(self, clock: VirtualClock, keep_batches: bool = False) -> None:
        self.happenings: list[SimulatedEvent] = []
        self.labelled: list[LabelledRequest] = []
        self.stepped: list[Stepped] = []
        self._clock = clock
        self._keep = keep_batches
        self._hash = blake2b(digest_size=8)

    def tell(self, kind: str, subject: str, text: str = "") -> None:
        """Something has happened to the mesh now."""
        now = self._clock.now
        self.happenings.append(SimulatedEvent(now, kind, subject, text))
        self._hash.update(f"{now!r} {kind} {subject} {text}\n".encode())

    def hash(self, *facts: object) -> None:
        """Something has happened that is too small to be told: it counts for the hash."""
        self._hash.update(f"{self._clock.now!r} {facts!r}\n".encode())

    def answered(self, one: LabelledRequest) -> None:
        """The answer to a request has come."""
        self._hash.update(
            f"{one.answered_s!r} L {one.teacher} {one.student} {one.batch} {one.rows}"
            f" {one.began_s!r} {one.used}\n".encode()
        )
        if self._keep:
            self.labelled.append(one)

    def stepped_on(self, one: Stepped) -> None:
        """A step is over."""
        self._hash.update(f"{one.ended_s!r} S {one.student} {one.batch} {one.began_s!r}\n".encode())
        if self._keep:
            self.stepped.append(one)

    @property
    def digest(self) -> str:
        """Of all that happened until now: 16 hex digits."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """One run.

    Attributes:
        scenario: what is played.
        seeding: makes generators; each is named by who draws and for what.
        clock: on which all happens.
        trace: hears of it.
    """

    scenario: Scenario
    seeding: Seeding
    clock: VirtualClock
    trace: EventTrace

    def rng(self, who: str, what: str) -> Generator:
        """The generator of one machine for one kind of chance."""
        return self.seeding(f"{self.scenario.seed}/{who}/{what}")

    def jitter(self, who: str, what: str, deviation: float) -> Jitter:
        """The factors of one kind of time of one machine."""
        return Jitter(self.rng(who, what), deviation)


class NetworkPort:
    """The network of one machine, both directions apart.

    Args:
        run: of the run.
        name: of the machine.
        link: what it can do; None: as the scenario says.
    """

    __slots__ = ("_in_free_at", "_jitter", "_link", "_out_free_at")

    def __init__(self, run: SimulationRun, name: str, link: NetworkLink | None) -> None:
        self._link = link or run.scenario.link
        self._jitter = run.jitter(name, "link", self._link.jitter)
        self._out_free_at = self._in_free_at = 0.0

    def arrives_at(self, to: NetworkPort, nbytes: float, now: float) -> float:
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
