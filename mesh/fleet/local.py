"""Teachers of one service as processes of this machine, as many as the coordinator desires."""

from __future__ import annotations

import logging
import random
import re
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import ProcessFailed, UsageError
from ...lifecycle import Stop
from ...scheduler.backoff import RetryPause
from ...scheduler.fleet import (
    FleetChange,
    FleetProcess,
    fleet_change,
    fleet_size,
    pause_after_exit,
)
from ...supervise import Command, Process, describe_exit, start, stop_all
from ..local import TEACHER_READY, TeacherSpec

log = logging.getLogger(__name__)

#: Seconds between two looks at its processes.
_LOOK_S: Final = 0.1
#: Times to live for which one that has served is not registered, after which it is taken for hung:
#: time enough to register again in a Redis that was emptied.
_SILENT_TTLS: Final = 5.0
#: Seconds beyond their own grace period that teachers have to end.
_MARGIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LocalFleet:
    """What a fleet is.

    Attributes:
        teacher: what each teacher is started with.
        coordinator: Redis URL that they are told.
        prefix: of the names of its teachers, another one with each start of a fleet.
        least: fewest teachers while any is desired.
        most: never more teachers.
        log_dir: folder for the output of each; None keeps only the last lines.
    """

    teacher: TeacherSpec
    coordinator: str
    prefix: str
    least: int = 0
    most: int = 1
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise UsageError(
                f"a fleet has at least --min and at most --max teachers, not {self.least} to"
                f" {self.most}"
            )

    def command(self, name: str) -> Command:
        """What starts the teacher of this name."""
        log_file = None if self.log_dir is None else self.log_dir / f"{name}.log"
        return self.teacher.command(name, self.coordinator, log=log_file)


@dataclass(slots=True)
class Teacher:
    """A teacher that runs, or has just ended; `told` to leave, and killed at the deadline.

    `seen_s` is when it was last registered, or it was not known, or not expected of it.
    """

    name: str
    process: Process
    started_s: float
    seen_s: float
    told: bool = False
    deadline_s: float = 0.0


class FleetRunner:
    """Starts, drains and replaces the teachers of a fleet; used by one thread.

    Args:
        fleet: what it is.
        desired: how many teachers the service should have; None: not known, all stays. Asked often.
        rng: spreads the pauses before a teacher that died is replaced.
        command: what starts the teacher of a name; None: the fleet's own.
        registered: names of the teachers that are registered; None: not known. Asked often.

    Attributes:
        teachers: the oldest first.
        ready: names of those that serve, or are about to leave.
    """

    def __init__(
        self,
        fleet: LocalFleet,
        desired: Callable[[], int | None],
        rng: random.Random | None = None,
        command: Callable[[str], Command] | None = None,
        registered: Callable[[], Collection[str] | None] = lambda: None,
    ) -> None:
        self._fleet = fleet
        self._command = command or fleet.command
        self._desired = desired
        self._registered = registered
        self._rng = rng or random.Random()
        self.teachers: list[Teacher] = []
        self.ready: set[str] = set()
        self._rest = RetryPause()
        self._count = 0
        self._started = 0

    def run(self, stop: Stop) -> None:
        """Keep the fleet until `stop` is requested; then let all teachers finish.

        Raises:
            UsageError: teachers cannot be started as they are told to.
            ProcessFailed: a teacher does not even end when it is killed.
        """
        try:
            while not stop.wait(_LOOK_S):
                self.look(time.monotonic())
        finally:
            self._end()

    def look(self, now: float) -> None:
        """See who has ended, who is late to end, and who is to come or go."""
        for teacher in [one for one in self.teachers if not one.process.alive]:
            self.teachers.remove(teacher)
            self._ended(teacher, now)
        self._kill_late(now)
        fleet, desired = self._fleet, self._desired()
        if desired is not None:
            count = fleet_size(desired, fleet.least, fleet.most)
            if count != self._count:
                bound = "" if count == desired else f", of {desired} desired"
                log.info("%s: teachers from now on: %d%s", fleet.teacher.service, count, bound)
            self._count = count
        hands = [FleetProcess(one.name, one.name in self.ready, one.told) for one in self.teachers]
        self._carry_out(fleet_change(hands, self._count, self._rest, now), now)

    def _kill_late(self, now: float) -> None:
        """Who has been told to leave and does not, and who hangs."""
        registered, silent_s = self._registered(), _SILENT_TTLS * self._fleet.teacher.ttl_s
        for teacher in self.teachers:
            if teacher.told:
                if now > teacher.deadline_s:
                    log.warning("%s has not finished in time and is killed", teacher.name)
                    teacher.process.kill()
            elif registered is None or teacher.name in registered or teacher.name not in self.ready:
                teacher.seen_s = now
            elif now - teacher.seen_s > silent_s:
                log.warning(
                    "%s has not been registered for %g s and is killed", teacher.name, silent_s
                )
                teacher.process.kill()

    def _carry_out(self, found: FleetChange, now: float) -> None:
        for _ in range(found.start):
            try:
                self._start(now)
            except ProcessFailed as error:  # no memory, no descriptors: later, perhaps
                log.error("%s", error)
                self._rest = pause_after_exit(self._rest, 0.0, now, self._rng)
                break
        for teacher in self.teachers:
            if teacher.name in found.drain:
                teacher.told = True
                teacher.deadline_s = now + self._fleet.teacher.grace_s + _MARGIN_S
                teacher.process.send_signal(signal.SIGTERM)
                teacher.process.send_signal(signal.SIGCONT)  # a suspended one could not act on it
                log.info("%s drains", teacher.name)

    def _start(self, now: float) -> None:
        name = f"{self._fleet.prefix}-{self._started + 1}"
        ready = re.compile(TEACHER_READY)
        process = start(
            self._command(name), echo=lambda line: self._heard(name, ready.search(line))
        )
        self._started += 1
        self.teachers.append(Teacher(name, process, now, now))
        log.info("%s starts", name)

    def _heard(self, name: str, ready: re.Match[str] | None) -> None:
        """A line of a teacher's output, in a thread of its own."""
        if ready is not None and name not in self.ready:
            self.ready.add(name)
            log.info("%s serves at %s", name, ready[3])

    def _ended(self, teacher: Teacher, now: float) -> None:
        ready, how = teacher.name in self.ready, describe_exit(teacher.process.returncode or 0)
        self.ready.discard(teacher.name)
        if teacher.told:
            log.info("%s has left: it %s", teacher.name, how)
            return
        said = next((line for line in reversed(teacher.process.tail()) if line.strip()), "")
        if teacher.process.returncode == UsageError.exit_code and not ready:
            raise UsageError(f"no teacher can be started so: {said.removeprefix('edl: ')}")
        self._rest = pause_after_exit(self._rest, now - teacher.started_s, now, self._rng)
        pause_s = max(0.0, self._rest.until_s - now)
        log.warning(
            "%s %s; another may start in %.1f s; its last line: %s",
            teacher.name, how, pause_s, said,
        )  # fmt: skip

    def _end(self) -> None:
        if self.teachers:
            log.info("teachers that finish what they have: %d", len(self.teachers))
        processes = [teacher.process for teacher in self.teachers]
        stop_all(processes, self._fleet.teacher.grace_s + _MARGIN_S)
