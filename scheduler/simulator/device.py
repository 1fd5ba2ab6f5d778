"""A teacher's device and a machine's network in virtual time.

A request begins at max(arrival, lane free): time in which the device idled is never made up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..ledger.instructions import Send
from .cast import Teacher
from .clock import Clock, Jitter
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


class Asker(Protocol):
    """Who has sent a request, and hears of its answer."""

    port: Port

    @property
    def answer_bytes(self) -> float:
        """Bytes of one row's labels."""

    def answered(self, job: Job) -> None:
        """The labels are there."""


@dataclass(eq=False, slots=True)
class Job:
    """A request at a teacher.

    Attributes:
        asker: who sent it.
        line: the connection that it went over; an answer over one that is closed is not heard.
        send: what the ledger said.
        rows: of it.
        sent_s: when it was sent.
        began_s: when the device began with it.
        left_s: device time that it still needs, while the device stands still.
        device_s: device time in all.
        ends_s: when the device is through with it.
    """

    asker: Asker
    line: object
    send: Send
    rows: int
    sent_s: float
    began_s: float = 0.0
    left_s: float = 0.0
    device_s: float = 0.0
    ends_s: float = 0.0


class Device:
    """Works on what arrives.

    Args:
        teacher: whose it is.
        clock: on which it works.
        port: the teacher's network.
        jitter: of its work.
        rested: called when it has nothing more, with answers arrived.

    Attributes:
        batches: whose labels were used, parts as parts.
    """

    def __init__(
        self,
        teacher: Teacher,
        clock: Clock,
        port: Port,
        jitter: Jitter,
        rested: Callable[[Teacher], None],
    ) -> None:
        self.teacher = teacher
        self.port = port
        self.batches = 0.0
        self._clock = clock
        self._jitter = jitter
        self._rested = rested
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._on_the_way = 0  # requests to it, and answers from it
        self._turn = 0  # what was planned before it stood still is void
        self._busy_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do, and nothing is on its way from or to it."""
        return not (self._waiting or self._running or self._on_the_way)

    @property
    def busy_s(self) -> float:
        """Lane-seconds that it worked, until now."""
        now = self._clock.now
        if not self.teacher.works:
            return self._busy_s
        return self._busy_s + sum(now - job.ends_s + job.left_s for job in self._running)

    def send(self, job: Job, nbytes: float) -> None:
        """A request is sent to it."""
        now = self._clock.now
        self._on_the_way += 1
        arrives = job.asker.port.arrives_at(self.port, nbytes, now)
        self._clock.at(arrives, partial(self._arrive, job))

    def _arrive(self, job: Job) -> None:
        self._on_the_way -= 1
        if self.teacher.state == "gone":
            return
        self._waiting.append(job)
        self._begin()

    def _begin(self) -> None:
        if not self.teacher.works:
            return
        now = self._clock.now
        while self._waiting and len(self._running) < self.teacher.group.lanes:
            job = self._waiting.popleft()
            job.began_s = now
            job.device_s = self.teacher.device_s(now, job.rows) * self._jitter.factor()
            job.left_s = job.device_s
            self._plan(job)

    def _plan(self, job: Job) -> None:
        """It works on a job until that is over, unless something happens to it."""
        self._running.append(job)
        job.ends_s = self._clock.now + job.left_s
        self._clock.at(job.ends_s, partial(self._end, job, self._turn))

    def _end(self, job: Job, turn: int) -> None:
        if turn != self._turn:
            return
        self._running.remove(job)
        self._busy_s += job.left_s
        asker = job.asker
        arrives = self.port.arrives_at(asker.port, job.rows * asker.answer_bytes, self._clock.now)
        self._on_the_way += 1
        self._clock.at(arrives, partial(self._answer, job))
        self._begin()

    def _answer(self, job: Job) -> None:
        self._on_the_way -= 1
        job.asker.answered(job)
        if self.teacher.state == "draining" and self.is_idle:
            self._rested(self.teacher)

    def turned(self) -> None:
        """The teacher's state is another one."""
        if self.teacher.works:
            stood = [job for job in self._running if job.ends_s < 0]
            self._running = [job for job in self._running if job.ends_s >= 0]
            for job in stood:
                self._plan(job)
            self._begin()
            if self.teacher.state == "draining" and self.is_idle:
                self._rested(self.teacher)
            return
        self._stand_still()
        if self.teacher.state == "gone":
            self._waiting.clear()
            self._running.clear()

    def _stand_still(self) -> None:
        now = self._clock.now
        self._turn += 1
        for job in self._running:
            if job.ends_s < 0:
                continue  # it stands already
            worked_s = max(job.left_s - (job.ends_s - now), 0.0)
            self._busy_s += worked_s
            job.left_s -= worked_s
            job.ends_s = -1.0
