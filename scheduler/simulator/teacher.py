"""A teacher in virtual time: its device, and what is known of its lease.

A request begins at max(arrival, lane free): time in which the device idled is never made up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ..ledger.instructions import Send
from .environment import Environment, Port
from .scenario import TeacherGroup

#: "starting": ordered, and not there yet. "serving". "draining": takes nothing new. "hung": says
#: nothing, but its lease may still run. "gone": its process is over; its lease may still run.
TeacherState = Literal["starting", "serving", "draining", "hung", "gone"]


@dataclass(eq=False, slots=True)
class Job:
    """A request at a teacher.

    Attributes:
        answered: hears of it when the labels are there.
        port: the network of the machine that sent it.
        answer_bytes: of one row's labels.
        link: the connection that it went over; an answer over one that is closed is not heard.
        send: what the ledger said.
        rows: of it.
        sent_s: when it was sent.
        began_s: when the device began with it.
        left_s: device time that it still needs, while the device stands still.
        device_s: device time in all.
        ends_s: when the device is through with it.
    """

    answered: Callable[[Job], None]
    port: Port
    answer_bytes: float
    link: int
    send: Send
    rows: int
    sent_s: float
    began_s: float = 0.0
    left_s: float = 0.0
    device_s: float = 0.0
    ends_s: float = 0.0


class Teacher:
    """Works on what arrives.

    Args:
        env: of the run.
        group: what it is like.
        number: within its group; later ones have greater numbers.
        rested: called when it has nothing more, with answers arrived.

    Attributes:
        name: its id.
        state: what it is; `turned` is called when it has become another one.
        slowed: its work takes so many times as long as the group's does.
        leased: the registry believes that it is there.
        life: of its lease; what was planned for an earlier one is void.
        registered_at: when its lease began.
        beats_from: it beats then, and every TTL / 2.5 after that.
        served_from: since when it has been there; None: it has not come, or is gone.
        there_s: how long it was there, up to then.
        drain_heard: students have been told that it takes nothing new.
        batches: whose labels were used, parts as parts.
    """

    def __init__(
        self, env: Environment, group: TeacherGroup, number: int, rested: Callable[[Teacher], None]
    ) -> None:
        self.name = f"{group.name}/{number}"
        self.group = group
        self.state: TeacherState = "starting"
        self.slowed = 1.0
        self.leased = self.drain_heard = False
        self.life = 0
        self.registered_at = self.beats_from = self.there_s = self.batches = 0.0
        self.served_from: float | None = None
        self._clock = env.clock
        self._port = Port(env, self.name, group.link)
        self._jitter = env.jitter(self.name, "work", group.jitter)
        self._rested = rested
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._on_the_way = 0  # requests to it, and answers from it
        self._turn = 0  # what was planned before it stood still is void
        self._busy_s = 0.0

    @property
    def works(self) -> bool:
        """Whether its device works on what it is sent."""
        return self.state in ("serving", "draining")

    def device_s(self, samples: int) -> float:
        """Seconds of a request that begins now, without jitter."""
        return self.slowed * self.group.device_s(self._clock.now, samples)

    @property
    def there_until_now_s(self) -> float:
        """Seconds that it was there."""
        since = self.served_from
        return self.there_s + (0.0 if since is None else self._clock.now - since)

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do, and nothing is on its way from or to it."""
        return not (self._waiting or self._running or self._on_the_way)

    @property
    def busy_s(self) -> float:
        """Lane-seconds that it worked, until now."""
        now = self._clock.now
        if not self.works:
            return self._busy_s
        return self._busy_s + sum(now - job.ends_s + job.left_s for job in self._running)

    def send(self, job: Job, nbytes: float) -> None:
        """A request is sent to it."""
        now = self._clock.now
        self._on_the_way += 1
        arrives = job.port.arrives_at(self._port, nbytes, now)
        self._clock.at(arrives, partial(self._arrive, job))

    def _arrive(self, job: Job) -> None:
        self._on_the_way -= 1
        if self.state == "gone":
            return
        self._waiting.append(job)
        self._begin()

    def _begin(self) -> None:
        if not self.works:
            return
        now = self._clock.now
        while self._waiting and len(self._running) < self.group.lanes:
            job = self._waiting.popleft()
            job.began_s = now
            job.device_s = self.device_s(job.rows) * self._jitter.factor()
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
        arrives = self._port.arrives_at(job.port, job.rows * job.answer_bytes, self._clock.now)
        self._on_the_way += 1
        self._clock.at(arrives, partial(self._answer, job))
        self._begin()

    def _answer(self, job: Job) -> None:
        self._on_the_way -= 1
        job.answered(job)
        if self.state == "draining" and self.is_idle:
            self._rested(self)

    def turned(self) -> None:
        """The state or the speed is another one.

        "serving": it works (again). "draining": it works; `rested` is called as soon as it has
        nothing more to do, at once if that is so. "hung": its device stands still with what it has.
        "gone": what it had is lost.
        """
        if self.works:
            stood = [job for job in self._running if job.ends_s < 0]
            self._running = [job for job in self._running if job.ends_s >= 0]
            for job in stood:
                self._plan(job)
            self._begin()
            if self.state == "draining" and self.is_idle:
                self._rested(self)
            return
        self._stand_still()
        if self.state == "gone":
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
