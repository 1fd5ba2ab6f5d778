"""The teachers of one student in the fluid plane, taken together: a capacity, a delay, windows."""

from __future__ import annotations

from math import inf
from typing import Final

from ..scenario import Scenario
from .devices import Device, Hold, User, wire_bytes
from .measures import Measures

#: Until a teacher has finished what is in its window, half of the first being done, on average.
FINISH: Final = 1.5


class Crew:
    """Who labels for a student.

    Args:
        user: the student.
        scenario: that is run.
        measures: what is known of them.

    Attributes:
        holds: the teachers that it may send to, by name.
        unreachable: those that were given to it, and whose connection is broken.
        capacity: batches per second that they label together, while they have enough to do.
        first: batches that newcomers have labelled so far, to be taken out.
        lag_s: that a batch is at a device, on average.
        travel_s: that it is on the way.
        windows: requests that they may have in flight.
        due: when this changes by itself.
    """

    def __init__(self, user: User, scenario: Scenario, measures: Measures) -> None:
        self.holds: dict[str, Hold] = {}
        self.unreachable: set[str] = set()
        self.capacity = self.lag_s = self.travel_s = self.first = 0.0
        self.windows = 0
        self._fresh: set[str] = set()  # who has not answered yet
        self.due = inf
        self._user = user
        self._scenario = scenario
        self._measures = measures
        group = user.student.group
        width = (group.link or scenario.link).bandwidth_bytes_per_s
        self._wire = inf if width is None else width / wire_bytes(group)
        self._tails: list[tuple[float, Hold, float]] = []  # (until, who, rate): these finish
        self._at_work: list[tuple[Hold, float]] = []  # those counted last, with their rates
        self._made = 0.0  # labelled since it was credited to them

    def __len__(self) -> int:
        return len(self.holds)

    @property
    def busy(self) -> float:
        """Batches under way that keep all of them at work."""
        return self.capacity * self.lag_s

    def join(self, device: Device, now: float) -> None:
        """One more may be sent to."""
        name = device.teacher.name
        hold = Hold(self._user, device)
        hold.follow(now, self._scenario)
        begins_s = max(now + self._scenario.connect_s, device.free_at)
        hold.from_s = begins_s + hold.travel_s + hold.device_s
        device.holds[self._user.student.name] = self.holds[name] = hold
        device.users[self._user.student.name] = self._user
        self._fresh.add(name)
        self._measures.begin(hold, begins_s)

    def part(self, name: str, now: float, *, finishes: bool) -> None:
        """One may not be sent to any more; it `finishes` what it has, or that is lost."""
        self.credit()
        hold = self.holds.pop(name)
        self._fresh.discard(name)
        if finishes and now >= hold.from_s and self._user.active:
            until = now + FINISH * hold.device_s
            hold.device.free_at = max(hold.device.free_at, until)
            self._tails.append((until, hold, hold.rate))
        del hold.device.holds[self._user.student.name]
        self._measures.forget(name)

    def paced(self, name: str, now: float) -> None:
        """The speed of one is another."""
        self.credit()
        hold = self.holds[name]
        before_s = hold.device_s
        hold.follow(now, self._scenario)
        if hold.device_s != before_s:
            self._measures.changed(hold, now)

    def recount(self, now: float) -> None:
        """Take together what they are now."""
        self.credit()
        self._tails = [tail for tail in self._tails if tail[0] > now and tail[1].works]
        self._at_work = [(hold, rate) for _, hold, rate in self._tails]
        due = min((until for until, _, _ in self._tails), default=inf)
        device_s = travel_s = 0.0
        windows = 0
        for hold in self.holds.values():
            windows += hold.window(self._scenario)
            device_s += hold.device_s
            travel_s += hold.travel_s
            if hold.from_s > now:
                due = min(due, hold.from_s)
            elif hold.works:
                rate = hold.rate
                self._at_work.append((hold, rate))
                if hold.device.teacher.name in self._fresh:
                    # Its first batch is there; the rate alone is half a batch behind from then on.
                    self._fresh.discard(hold.device.teacher.name)
                    self.first += rate * hold.device_s / 2
        count = max(len(self.holds), 1)
        total = sum(rate for _, rate in self._at_work)
        self.capacity, self.windows = min(total, self._wire), windows
        self.lag_s, self.travel_s = device_s / count, travel_s / count
        self.due = min(due, self._measures.look(now))

    def made(self, batches: float) -> None:
        """So much more is labelled."""
        self._made += batches

    def credit(self) -> None:
        """What was labelled since the last time is the work of those who were counted last."""
        made, self._made = self._made, 0.0
        if made <= 0:
            return
        total = sum(rate for _, rate in self._at_work)
        for hold, rate in self._at_work:
            part = made * rate / total
            hold.device.batches += part
            hold.device.busy_s += part * hold.device_s
