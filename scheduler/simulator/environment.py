"""Shared parts of a simulated mesh: virtual time, random numbers, networks, and the event trace.

Jitter and probes have a random stream of their own on each machine. So with one more teacher, all
other machines still draw the same numbers. Lifetimes and heartbeat phases come from one stream per
group of teachers. One stream per run draws the members that faults hit.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from math import inf, log, log1p, sqrt
from typing import Any, Protocol

from ..backoff import RandomLike
from .result import LabelledRequest, SimulatedEvent, StudentStep
from .scenario import NetworkLink, Scenario


class VirtualClock:
    """Runs scheduled actions by time; at equal times, in the order of scheduling.

    Attributes:
        now: virtual seconds since the beginning.
        events: number of executed actions.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._scheduled = 0
        self._schedule: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Schedule an action for a moment, or for now if that is past."""
        self._scheduled += 1
        heappush(self._schedule, (max(moment, self.now), self._scheduled, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an action after this many `seconds` (>= 0)."""
        self._scheduled += 1
        heappush(self._schedule, (self.now + seconds, self._scheduled, action))

    @property
    def next_at(self) -> float:
        """Time of the next action; infinity: there is none."""
        return self._schedule[0][0] if self._schedule else inf

    def step(self) -> None:
        """Execute the next action; there must be one."""
        self.now, _, action = heappop(self._schedule)
        self.events += 1
        action()


class Generator(RandomLike, Protocol):
    """A generator of random numbers, such as `random.Random`."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """Return a number whose logarithm is normal."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Shuffle a list in place."""


#: Makes a random generator from a seed text, as `random.Random` does; equal texts give equal
#: generators.
Seeding = Callable[[str], Generator]


class Jitter:
    """Random factors of times, with mean 1.

    Args:
        generator: source of random numbers.
        deviation: standard deviation of the factors; 0: each factor is 1, and nothing is drawn.
    """

    __slots__ = ("_generator", "_mu", "_sigma")

    def __init__(self, generator: Generator, deviation: float) -> None:
        variance = log1p(deviation**2)
        self._generator = generator
        self._mu, self._sigma = -variance / 2, sqrt(variance)

    def factor(self) -> float:
        if not self._sigma:
            return 1.0
        return self._generator.lognormvariate(self._mu, self._sigma)


def lifetime_s(generator: Generator, leave_per_minute: float) -> float:
    """Draw the seconds until a machine leaves, if a share (0 < share <= 1) leaves per minute.

    The probability of leaving in the next moment does not depend on the machine's age.
    """
    rate = -log(max(1 - leave_per_minute, 1e-9)) / 60
    return -log(1 - generator.random()) / rate


class EventTrace:
    """Records all events in order.

    Args:
        clock: the virtual clock.
        keep_batches: keep every answered request and every step, too. They are hashed in any case.

    Attributes:
        mesh_events: what happened to students, teachers and services, without batches.
        requests, steps: answered requests and steps, if they are kept.
    """

    def __init__(self, clock: VirtualClock, keep_batches: bool = False) -> None:
        self.mesh_events: list[SimulatedEvent] = []
        self.requests: list[LabelledRequest] = []
        self.steps: list[StudentStep] = []
        self._clock = clock
        self._keep = keep_batches
        self._hash = blake2b(digest_size=8)

    def record(self, kind: str, subject: str, text: str = "") -> None:
        """Record an event of the mesh."""
        now = self._clock.now
        self.mesh_events.append(SimulatedEvent(now, kind, subject, text))
        self._hash.update(f"{now!r} {kind} {subject} {text}\n".encode())

    def hash(self, *facts: object) -> None:
        """Add facts to the hash without recording them."""
        self._hash.update(f"{self._clock.now!r} {facts!r}\n".encode())

    def record_request(self, request: LabelledRequest) -> None:
        self._hash.update(
            f"{request.answered_s!r} L {request.teacher} {request.student} {request.batch}"
            f" {request.rows} {request.began_s!r} {request.used}\n".encode()
        )
        if self._keep:
            self.requests.append(request)

    def record_step(self, step: StudentStep) -> None:
        self._hash.update(
            f"{step.ended_s!r} S {step.student} {step.batch} {step.began_s!r}\n".encode()
        )
        if self._keep:
            self.steps.append(step)

    @property
    def digest(self) -> str:
        """Hash of everything so far: 16 hex digits."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """Shared parts of one run.

    Attributes:
        scenario: the scenario.
        seeding: makes a random generator from a seed text.
        clock: the virtual clock.
        trace: records events.
    """

    scenario: Scenario
    seeding: Seeding
    clock: VirtualClock
    trace: EventTrace

    def rng(self, machine: str, purpose: str) -> Generator:
        """Return the generator of one machine for one purpose."""
        return self.seeding(f"{self.scenario.seed}/{machine}/{purpose}")

    def jitter(self, machine: str, purpose: str, deviation: float) -> Jitter:
        """Return the jitter of one kind of time of one machine."""
        return Jitter(self.rng(machine, purpose), deviation)


class NetworkPort:
    """The network interface of one machine; sending and receiving do not slow each other.

    Args:
        run: the run.
        name: name of the machine.
        link: its network; None: the scenario's.
    """

    __slots__ = ("_in_free_at", "_jitter", "_link", "_out_free_at")

    def __init__(self, run: SimulationRun, name: str, link: NetworkLink | None) -> None:
        self._link = link or run.scenario.link
        self._jitter = run.jitter(name, "link", self._link.jitter)
        self._out_free_at = self._in_free_at = 0.0

    def arrives_at(self, to: NetworkPort, nbytes: float, now: float) -> float:
        """Book a transfer of `nbytes` that is sent now; return when it has arrived completely.

        The bytes leave this machine at its speed, after its earlier transfers. They enter `to` at
        the speed of `to`, after the earlier transfers to it. The transfer ends when both have
        finished; then the greater latency of the two machines is added.
        """
        begins = max(now, self._out_free_at)
        passed = begins
        if (speed := self._link.bandwidth_bytes_per_s) is not None:
            passed = self._out_free_at = begins + nbytes / speed
        if (speed := to._link.bandwidth_bytes_per_s) is not None:
            received = max(begins, to._in_free_at) + nbytes / speed
            passed = to._in_free_at = max(passed, received)
        slower = self if self._link.latency_s >= to._link.latency_s else to
        return passed + slower._link.latency_s * slower._jitter.factor()
