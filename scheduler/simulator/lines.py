"""A simulated reader's connections: opened, broken and let go as a live reader's pool does it.

The rules are the live ones: `windows` (how much is in flight), `turnaround` (what to expect),
`outliers` (who is out of the pool) and, in `lateness.py`, `hedging`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, Protocol

from .. import outliers, windows
from ..ledger import Ledger
from ..ledger import events as ev
from ..turnaround import Turnarounds, began
from .cast import Student
from .chance import Generator
from .clock import Clock
from .device import Device, Job
from .lateness import Lateness
from .network import Port
from .scenario import Scenario
from .trace import Trace

#: One that does not answer is tried again after so long.
RETRY_S: Final = 0.5


class Owner(Protocol):
    """The reader whose lines they are."""

    student: Student
    ledger: Ledger

    def answered(self, teacher: str, request: int, rows: int, device_s: float) -> bool:
        """Labels have come; whether they count."""

    def hear(self, events: Sequence[ev.Event]) -> None:
        """What has become of teachers, for the ledger."""

    def decide(self) -> None:
        """Something has changed."""

    @property
    def waits(self) -> bool:
        """Whether the student waits for a batch."""


@dataclass(eq=False, slots=True)
class Line:
    """A connection to a teacher.

    Attributes:
        name: of the teacher.
        device: where requests go.
        window: how many may be in flight.
        standing: how the teacher stands.
        sent: requests in flight, and when they were sent.
        answered_at: its latest answer.
        probe: number of the probe that counts, the latest.
        probed_at: when that one is answered.
    """

    name: str
    device: Device
    window: windows.Window
    standing: outliers.Standing = field(default_factory=outliers.Standing)
    sent: dict[int, float] = field(default_factory=dict)
    answered_at: float = -inf
    probe: int = 0
    probed_at: float = -inf


class Lines:
    """The connections of one reader.

    Args:
        owner: hears what comes of them.
        scenario: the settings.
        clock: on which they work.
        port: the network of the student's machine.
        devices: of all teachers, by name.
        rng: scatters probes.
        trace: hears of answers.

    Attributes:
        port: as given.
        lines: to the teachers that are assigned, by name.
        leaving: to those that were revoked, and have something in flight.
    """

    def __init__(
        self,
        owner: Owner,
        scenario: Scenario,
        clock: Clock,
        port: Port,
        devices: Mapping[str, Device],
        rng: Generator,
        trace: Trace,
    ) -> None:
        self.port = port
        self.lines: dict[str, Line] = {}
        self.leaving: dict[str, Line] = {}
        self._owner = owner
        self._connect_s = scenario.connect_s
        self._windows = windows.WindowConfig(
            scenario.window, max(scenario.window, scenario.window_max)
        )
        self._clock = clock
        self._devices = devices
        self._rng = rng
        self._trace = trace
        self._times = Turnarounds()
        self._silent: set[str] = set()
        self._lateness = Lateness(self, owner.ledger, self._times, clock)
        self._closed = False
        group = owner.student.group
        self._most_rows = group.request_samples
        self._row_bytes, self.answer_bytes = group.input_bytes, group.label_bytes

    @property
    def unreachable(self) -> int:
        """Teachers that are assigned and do not answer."""
        return len(self._silent)

    @property
    def every(self) -> Mapping[str, Line]:
        """To teachers that are assigned, and to those that leave."""
        return {**self.lines, **self.leaving}

    def window_of(self, name: str) -> int:
        """Requests that a teacher may have in flight."""
        line = self.lines.get(name) or self.leaving[name]
        return windows.size(line.window, self._windows)

    # -- they come and go

    def assign(self, teachers: Sequence[str], lost: Sequence[str]) -> None:
        """Follow what the coordinator says: `Plane.assign`."""
        wanted, dead = set(teachers), set(lost)
        gone: list[str] = []
        revoked: list[str] = []
        for name in (*self.lines, *self.leaving):
            if name in dead:
                gone.append(name)
            elif name not in wanted and name in self.lines:
                revoked.append(name)
        self._owner.hear([ev.TeacherRevoked(name) for name in (*gone, *revoked)])
        for name in gone:
            self._drop(name)
        for name in revoked:
            self._silent.discard(name)
            self.leaving[name] = self.lines.pop(name)
            self._let_go(name)
        for name in teachers:
            if name in self.leaving:  # it is the same one: its requests go on
                line = self.lines[name] = self.leaving.pop(name)
                self._connect(line)
            elif name not in self.lines:
                self._open(name)
        self._owner.decide()

    def broke(self, name: str) -> None:
        """The connection to a teacher broke; it is tried anew while the teacher is assigned."""
        line = self.lines.get(name)
        if line is None and name not in self.leaving:
            return
        self._drop(name)
        if line is not None:
            self._silent.add(name)
            self._open(name, line.standing, RETRY_S)
        self._owner.decide()

    def close(self) -> None:
        """Nothing more is heard."""
        self._closed = True
        self.lines.clear()
        self.leaving.clear()

    def _drop(self, name: str) -> None:
        self.lines.pop(name, None)
        self.leaving.pop(name, None)
        self._silent.discard(name)
        self._times.forget(name)
        self._owner.hear([ev.TeacherLost(name)])

    def _let_go(self, name: str) -> None:
        """One that leaves has perhaps answered its last request."""
        if name in self.leaving and not self._owner.ledger.in_flight_at(name):
            del self.leaving[name]
            self._times.forget(name)

    def _open(
        self, name: str, standing: outliers.Standing | None = None, pause_s: float = 0.0
    ) -> None:
        window = windows.start(self._windows, self._clock.now)
        line = Line(name, self._devices[name], window, standing or outliers.Standing())
        self.lines[name] = line
        self._connect(line, pause_s)

    def _connect(self, line: Line, pause_s: float = 0.0) -> None:
        line.probe += 1
        line.probed_at = self._clock.now + pause_s + self._connect_s
        self._clock.at(line.probed_at, partial(self._probed, line, line.probe))

    def _probed(self, line: Line, probe: int) -> None:
        """A teacher was asked whether it serves."""
        name = line.name
        if self._closed or probe != line.probe or self.lines.get(name) is not line:
            return
        if line.device.teacher.state != "serving":
            self._silent.add(name)
            self._connect(line, RETRY_S)
        elif (pause_s := self._pause_s(line)) > 0:
            self._connect(line, pause_s)
        else:
            now = self._clock.now
            self._silent.discard(name)
            line.standing, _ = outliers.probed(line.standing, True, now, self._rng)
            self._owner.hear([ev.TeacherJoined(name, self.window_of(name), self._most_rows)])
        self._owner.decide()

    def _pause_s(self, line: Line) -> float:
        due = outliers.probe_at(line.standing, self._owner.ledger.usable)
        return 0.0 if due is None else max(due - self._clock.now, 0.0)

    # -- requests

    def send(self, send: ev.Send) -> None:
        """A request goes out."""
        now, name = self._clock.now, send.teacher
        line = self.lines.get(name) or self.leaving[name]
        line.sent[send.request] = now
        rows = sum(span.rows for span in send.spans)
        line.device.send(Job(self, line, send, rows, now), rows * self._row_bytes)
        self._lateness.sent(now)

    def answered(self, job: Job) -> None:
        """The labels of a request are there."""
        line, name, request = job.line, job.send.teacher, job.send.request
        held = self.lines.get(name) is line or self.leaving.get(name) is line
        if self._closed or not held or not isinstance(line, Line):
            self._tell(job, False)
            return
        in_flight = len(self._owner.ledger.in_flight_at(name))
        used = self._owner.answered(name, request, job.rows, job.device_s)
        if used:
            line.device.batches += job.rows / self._owner.student.group.batch
        self._tell(job, used)
        self._measure(line, job, in_flight)
        self._let_go(name)
        self._owner.decide()

    def _tell(self, job: Job, used: bool) -> None:
        self._trace.answered(
            job.send.teacher,
            self._owner.student.name,
            job.send.spans[0].batch,
            job.rows,
            job.sent_s,
            job.began_s,
            job.ends_s,
            used,
        )

    def _measure(self, line: Line, job: Job, in_flight: int) -> None:
        """What an answer says of its teacher: as a live crew's speeds and standings do it."""
        now = self._clock.now
        line.standing = outliers.answered(line.standing, now)
        sent_at = line.sent.pop(job.send.request, None)
        if sent_at is None:
            return
        turnaround_s = now - began(sent_at, line.answered_at)
        line.answered_at = now
        self._times.answered(line.name, job.rows, turnaround_s)
        before = self.window_of(line.name)
        line.window = windows.answered(
            line.window,
            job.rows,
            turnaround_s,
            job.device_s,
            in_flight >= before,
            now,
            self._windows,
        )
        if (size := self.window_of(line.name)) != before:
            self._owner.hear([ev.WindowChanged(line.name, size)])
        self._lateness.answered(line.name)

    # -- time

    def pass_time(self) -> None:
        """Nothing but time has passed: while nobody is usable, the ejected are asked sooner."""
        if self._owner.ledger.usable:
            return
        soon = self._clock.now + self._connect_s
        for line in self.lines.values():
            if line.standing.ejected and line.probed_at > soon and not self._pause_s(line):
                self._connect(line)

    def late(self, hedges: Sequence[int], silent: frozenset[str]) -> None:
        """A look at what is late: these are asked of others too, and these teachers are silent."""
        owner, lines = self._owner, self.lines
        owner.hear([ev.Hedge(request) for request in hedges])
        standings = {name: lines[name].standing for name in owner.ledger.teachers if name in lines}
        after, ejected = outliers.look(
            standings, silent, owner.ledger.usable_teachers, self._clock.now, self._rng
        )
        for name, standing in after.items():
            lines[name].standing = standing
        for name in ejected:
            self._silent.add(name)
            owner.hear([ev.Ejected(name)])
            self._connect(lines[name], self._pause_s(lines[name]))
        owner.decide()

    @property
    def waits(self) -> bool:
        """Whether the student waits for a batch that is not there."""
        return self._owner.waits

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is heard."""
        return self._closed
