"""Runs as many teachers of one service on this machine as the coordinator wants."""

from __future__ import annotations

import logging
import os
import random
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...coordinator.calling.client import fetch_status
from ...coordinator.contexts import MeshContext
from ...coordinator.manager.overview import state_of
from ...coordinator.registry.schema import check_member, check_service
from ...proto import coordinator_pb2 as pb
from ...proto.security.credentials import ClientSecurity
from ...runtime.errors import EdlError, ProcessFailed, UsageError
from ...runtime.lifecycle import Periodic, Stop
from ...runtime.supervise import Process, describe_exit, start, wait_all
from ...scheduler.backoff import RetryPause
from ...scheduler.fleet import (
    FleetChange,
    FleetProcess,
    fleet_change,
    fleet_size,
    pause_after_exit,
)
from ..cores import available_cores
from ..local import TEACHER_READY, TEACHER_START_S, TeacherSpec

log = logging.getLogger(__name__)

#: Prefix of the names of teachers that fleets start.
FLEET_PREFIX: Final = "fleet-"
#: Seconds between polls of the coordinator.
_COORDINATOR_POLL_S: Final = 0.5
#: Seconds between checks of the processes.
_PROCESS_POLL_S: Final = 0.1
#: TTLs for which a ready teacher may be unregistered before it is killed as hung: enough time to
#: register again after Redis lost its data.
_SILENT_TTLS: Final = 5.0
#: Seconds after the grace period before a draining teacher is killed.
_EXIT_MARGIN_S: Final = 5.0


class ServicePoller:
    """Polls the wanted number of teachers of a fleet, and the names of registered teachers.

    Any thread may read the attributes.

    Args:
        url: Redis URL of the mesh.
        service: name of the service.
        security: credentials for managers; None: neither TLS nor token.

    Attributes:
        managed_target: number of teachers that fleets or a Kubernetes operator should run; None:
            unknown.
        registered: names of the service's teachers; None: unknown, or the coordinator is silent.
    """

    def __init__(self, url: str, service: str, security: ClientSecurity | None = None) -> None:
        self._url = url
        self._service = service
        self._security = security
        self.managed_target: int | None = None
        self.registered: frozenset[str] | None = None
        self._error = ""
        self._thread = Periodic("edl-fleet-poller", _COORDINATOR_POLL_S, self.poll)

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread within seconds."""
        self._thread.stop()

    def poll(self) -> None:
        """Poll once; `managed_target` stays the same if the coordinator does not answer."""
        try:
            services = fetch_status(self._url, self._service, security=self._security).services
        except EdlError as error:
            self.registered = None
            if str(error) != self._error:
                log.warning("%s; the fleet stays as it is", error)
            self._error = str(error)
            return
        if self._error:
            log.info("the coordinator answers again")
        self._error = ""
        registered = None
        for status in services:
            if status.name == self._service:
                registered = frozenset(teacher.teacher_id for teacher in status.teachers)
                if status.HasField("desired_teachers"):
                    self.managed_target = max(0, status.desired_teachers - _count_unmanaged(status))
        self.registered = registered


def _count_unmanaged(status: pb.ServiceStatus) -> int:
    """Return the number of serving teachers that were not started by a fleet."""
    return sum(
        not teacher.teacher_id.startswith(FLEET_PREFIX)
        and state_of(teacher.admission, teacher.state) == "serving"
        for teacher in status.teachers
    )


@dataclass(frozen=True, slots=True)
class LocalFleetConfig:
    """Settings of a fleet. Raises UsageError unless 0 <= least <= most.

    Attributes:
        teacher: settings of the teachers.
        coordinator: Redis URL of the mesh.
        prefix: prefix of the teachers' names, unique to each run of a fleet.
        least: least number of teachers, unless no teacher is wanted.
        most: greatest number of teachers.
        log_dir: folder for the teachers' output; None: only the last lines are kept.
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
                f"a fleet needs 0 <= min <= max teachers, not {self.least} to {self.most}"
            )


@dataclass(slots=True)
class FleetTeacher:
    """A teacher that runs or has just ended.

    Attributes:
        name: name of the teacher.
        process: process of the teacher.
        started_s: monotonic time of its start.
        seen_s: latest monotonic time at which it was registered, was not ready yet, or the
            registered teachers were unknown.
        leaving: whether it was sent SIGTERM, to drain.
        deadline_s: monotonic time at which a leaving teacher is killed.
    """

    name: str
    process: Process
    started_s: float
    seen_s: float
    leaving: bool = False
    deadline_s: float = 0.0


class LocalFleetRunner:
    """Starts, drains and replaces the teachers of a fleet. Used by one thread.

    Args:
        fleet: settings of the fleet.
        service: polls the coordinator. No teacher starts before `service.managed_target` is known.

    Attributes:
        teachers: the teachers, oldest first.
        ready: names of teachers that have become ready.
    """

    def __init__(self, fleet: LocalFleetConfig, service: ServicePoller) -> None:
        self._fleet, self._service = fleet, service
        self._rng = random.Random()
        self.teachers: list[FleetTeacher] = []
        self.ready: set[str] = set()
        self._options_work = False  # whether a teacher was ready once
        self._pause = RetryPause()
        self._wanted_count = 0
        self._start_count = 0

    def run(self, stop: Stop) -> None:
        """Run the fleet until `stop` is requested; then drain all teachers.

        Raises:
            UsageError: the first teachers refuse their options or model.
            ProcessFailed: a killed teacher does not end.
        """
        try:
            while not stop.wait(_PROCESS_POLL_S):
                self.step(time.monotonic())
        finally:
            self._drain_all()

    def step(self, now: float) -> None:
        """Handle ended teachers, kill overdue and hung ones, and start or drain teachers."""
        for teacher in [t for t in self.teachers if not t.process.alive]:
            self.teachers.remove(teacher)
            self._handle_exit(teacher, now)
        self._kill_overdue(now)
        fleet, desired = self._fleet, self._service.managed_target
        if desired is not None:
            count = fleet_size(desired, fleet.least, fleet.most)
            if count != self._wanted_count:
                bound = "" if count == desired else f" ({desired} desired)"
                log.info("%s: %d teachers wanted%s", fleet.teacher.service, count, bound)
            self._wanted_count = count
        processes = [
            FleetProcess(teacher.name, teacher.name in self.ready, teacher.leaving)
            for teacher in self.teachers
        ]
        self._apply(fleet_change(processes, self._wanted_count, self._pause, now), now)

    def _kill_overdue(self, now: float) -> None:
        """Kill teachers that start or drain for too long, or that hang."""
        registered, silent_s = self._service.registered, _SILENT_TTLS * self._fleet.teacher.ttl_s
        for teacher in self.teachers:
            if teacher.leaving:
                if now > teacher.deadline_s:
                    log.warning("%s has not finished in time and is killed", teacher.name)
                    teacher.process.kill()
            elif teacher.name not in self.ready:
                teacher.seen_s = now
                if now - teacher.started_s > TEACHER_START_S:
                    log.warning("%s was not ready in time and is killed", teacher.name)
                    teacher.process.kill()
            elif registered is None or teacher.name in registered:
                teacher.seen_s = now
            elif now - teacher.seen_s > silent_s:
                log.warning(
                    "%s has not been registered for %g s and is killed", teacher.name, silent_s
                )
                teacher.process.kill()

    def _apply(self, change: FleetChange, now: float) -> None:
        for _ in range(change.start):
            try:
                self._start(now)
            except ProcessFailed as error:  # memory or descriptors may be available later
                log.error("%s", error)
                self._pause = pause_after_exit(self._pause, now, now, self._rng)
                break
        for teacher in self.teachers:
            if teacher.name in change.drain:
                self._drain(teacher, now)

    def _drain(self, teacher: FleetTeacher, now: float) -> None:
        teacher.leaving = True
        teacher.deadline_s = now + self._fleet.teacher.grace_s + _EXIT_MARGIN_S
        teacher.process.terminate()
        log.info("%s drains", teacher.name)

    def _start(self, now: float) -> None:
        fleet, name = self._fleet, f"{self._fleet.prefix}-{self._start_count + 1}"
        ready = re.compile(TEACHER_READY)
        log_file = None if fleet.log_dir is None else fleet.log_dir / f"{name}.log"
        command = fleet.teacher.command(name, fleet.coordinator, log=log_file)
        process = start(command, echo=lambda line: self._note_ready(name, ready.search(line)))
        self._start_count += 1
        self.teachers.append(FleetTeacher(name, process, now, now))
        log.info("%s starts", name)

    def _note_ready(self, name: str, ready: re.Match[str] | None) -> None:
        """Record that a teacher is ready, if its output matched. Called by other threads."""
        if ready is not None and name not in self.ready:
            self.ready.add(name)
            self._options_work = True
            log.info("%s serves at %s", name, ready[3])

    def _handle_exit(self, teacher: FleetTeacher, now: float) -> None:
        exit_text = describe_exit(teacher.process.returncode or 0)
        self.ready.discard(teacher.name)
        if teacher.leaving:
            log.info("%s has left: it %s", teacher.name, exit_text)
            return
        last = teacher.process.last_line
        if teacher.process.returncode == UsageError.exit_code and not self._options_work:
            raise UsageError(
                f"teachers cannot start with these options: {last.removeprefix('edl: ')}"
            )
        self._pause = pause_after_exit(self._pause, teacher.started_s, now, self._rng)
        pause_s = max(0.0, self._pause.until_s - now)
        log.warning(
            "%s %s; its last line: %s; another may start in %.1f s",
            teacher.name, exit_text, last, pause_s,
        )  # fmt: skip

    def _drain_all(self) -> None:
        if self.teachers:
            log.info("draining %d teachers", len(self.teachers))
        for teacher in self.teachers:
            if not teacher.leaving:  # a second SIGTERM would end the teacher at once
                self._drain(teacher, time.monotonic())
        wait_all((teacher.process, teacher.deadline_s) for teacher in self.teachers)


def run_local_fleet(
    teacher: TeacherSpec,
    mesh: MeshContext,
    least: int,
    most: int | None,
    logs: Path | None,
    stop: Stop,
    say: Callable[[str], object],
) -> None:
    """Run teachers of a service until `stop` is requested; then drain all.

    Args:
        teacher: settings of the teachers.
        mesh: address and credentials of the mesh.
        least: least number of teachers, unless no teacher is wanted.
        most: greatest number of teachers; None: one per core.
        logs: folder for the teachers' output; None: only the last lines are kept.
        stop: ends the fleet.
        say: called with a line of text once the fleet runs.

    Raises:
        UsageError: the options are invalid.
        ProcessFailed: a killed teacher does not end.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    fleet = LocalFleetConfig(
        teacher,
        mesh.coordinator,
        check_member("teachers", f"{FLEET_PREFIX}{host}-{os.getpid()}"),
        least,
        len(available_cores()) if most is None else most,
        logs,
    )
    poller = ServicePoller(mesh.coordinator, check_service(teacher.service), mesh.security())
    try:
        poller.start()
        say(f"fleet ready: {teacher.service}, {fleet.least} to {fleet.most} teachers")
        LocalFleetRunner(fleet, poller).run(stop)
    finally:
        poller.stop()
