"""Chaos run: starts the mesh, carries out the fault plan, and checks the invariants."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ...runtime.lifecycle import Stop
from .fault_injector import FaultInjector
from .fault_plan import KIND_BY_NAME, ChaosSettings, Fault, make_plan
from .invariants import check_invariants, mesh_recovered
from .monitoring import LeftoverCheck, MeshMonitor
from .processes import START_TIMEOUT_S, ChaosMesh, ElasticTraining, wait_for
from .report import ChaosReport
from .run_trace import (
    CALL_RECORD,
    SAMPLE_RECORD,
    RunTrace,
    StudentTrace,
    read_records,
    read_stats,
)

#: Maximum number of seconds to wait for the recovery of the mesh at the end of a run.
RECOVERY_TIMEOUT_S = 30.0
_RECOVERY_POLL_S = 0.5


def run_chaos(
    settings: ChaosSettings,
    folder: Path,
    leftover_check: LeftoverCheck,
    *,
    say: Callable[[str], None],
    stop: Stop,
) -> ChaosReport:
    """Start a mesh, inject the planned faults, and check the invariants.

    Args:
        settings: settings of the run.
        folder: folder for logs and for the files of students.
        leftover_check: finds the processes and shared memory that the run leaves behind; made
            before the run, because it has to know what existed already.
        say: called with a line of text for each fault that begins.
        stop: ends the run early; the invariants are checked on the trace so far. While the mesh
            starts, `stop.check` ends the run with an exception.

    Raises:
        ProcessFailed: a process of the mesh did not start, or did not end.
    """
    plan = make_plan(settings)
    run = _ChaosRun(settings, folder)
    with ExitStack() as stack:
        stack.callback(run.injector.close)
        stack.callback(run.mesh.close)
        stack.callback(run.training.stop)
        stack.callback(run.monitor.stop)
        run.start(stop.check)
        run.carry_out(plan, say, stop)
        run.wait_recovered(stop)
        run.stop_students()
    trace = run.trace(leftover_check.leftovers())
    interrupted = stop.requested
    results = check_invariants(trace, interrupted=interrupted)
    return ChaosReport(settings, plan, trace, results, run.ended_s, interrupted)


class _ChaosRun:
    """One run. Its clock is 0 when students train and misconfigured teachers are ready."""

    def __init__(self, settings: ChaosSettings, folder: Path) -> None:
        self._settings = settings
        self._created = time.monotonic()
        self._startup_s = 0.0
        self._troubles: dict[str, str] = {}
        self.ended_s = 0.0
        self.mesh = ChaosMesh(settings, folder, self._created)
        self.training = ElasticTraining(self.mesh.url, folder)
        self.injector = FaultInjector(self.mesh, settings, self.clock)
        self.monitor = MeshMonitor(self.mesh.url, self.clock)

    def clock(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._created - self._startup_s

    def start(self, check: Callable[[], None]) -> None:
        """Start the mesh, wait until all students train, then start the misconfigured teachers.

        Raises ProcessFailed.
        """
        for names in (["redis"], ["manager"], self._settings.teacher_names):
            self.mesh.start(names, check)
        self.training.start(check)
        self.mesh.start_students()
        files = [config.file("samples") for config in self.mesh.student_configs.values()]
        wait_for(
            lambda: all(file.exists() and file.stat().st_size for file in files),
            self.mesh.students.values(),
            START_TIMEOUT_S,
            "received no sample",
            check,
        )
        # These start last: the first content_id that registers becomes that of the service.
        self.mesh.start(self._settings.misconfigured_names, check)
        self._startup_s = time.monotonic() - self._created
        self.monitor.start()

    def carry_out(self, plan: tuple[Fault, ...], say: Callable[[str], None], stop: Stop) -> None:
        """Inject and heal each fault at its time; return early when `stop` is requested."""
        events = [(fault.at_s, True, fault) for fault in plan]
        events += [(fault.at_s + fault.lasts_s, False, fault) for fault in plan if fault.lasts_s]
        events.sort(key=lambda event: (event[0], event[1], event[2].number))
        for at_s, begins, fault in events:
            if stop.wait(max(0.0, at_s - self.clock())):
                return
            if not begins:
                self.injector.heal(fault)
                continue
            skipped = self.injector.inject(fault)
            duration = f" for {fault.lasts_s:.1f} s" if fault.lasts_s else ""
            say(
                f"{self.clock():7.1f} s  {fault.target}: {KIND_BY_NAME[fault.kind].description}"
                f"{duration}" + (f" (skipped: {skipped})" if skipped else "")
            )
        stop.wait(max(0.0, self._settings.seconds - self.clock()))

    def wait_recovered(self, stop: Stop) -> None:
        """Wait until the mesh has recovered, at most `RECOVERY_TIMEOUT_S`."""
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline and not stop.wait(_RECOVERY_POLL_S):
            if mesh_recovered(self.trace()).held:
                return

    def stop_students(self) -> None:
        """Heal every fault, then stop the students and the elastic training."""
        self.injector.heal_all()
        self.monitor.stop()
        self.ended_s = self.clock()
        self._troubles = self.mesh.stop_students()
        self.training.stop()

    def trace(self, leftovers: tuple[str, ...] = ()) -> RunTrace:
        """Return the trace so far."""
        return RunTrace(
            self._settings.teacher_names,
            {name: self._student_trace(name) for name in self.mesh.student_configs},
            self.injector.records,
            tuple(self.monitor.snapshots),
            tuple(self.monitor.stalls),
            leftovers,
            self.monitor.max_load,
            self.training.result,
            self._settings.refusing_names,
            self._settings.misconfigured_names,
        )

    def _student_trace(self, name: str) -> StudentTrace:
        config = self.mesh.student_configs[name]
        samples = read_records(config.file("samples"), SAMPLE_RECORD).copy()
        calls = read_records(config.file("calls"), CALL_RECORD).copy()
        samples["at_s"] -= self._startup_s
        calls["at_s"] -= self._startup_s
        stats = tuple(
            replace(one, at_s=one.at_s - self._startup_s)
            for one in read_stats(config.file("stats"))
        )
        began_s = float(samples["at_s"][0]) if len(samples) else 0.0
        ended_s, trouble = self.ended_s or self.clock(), self._troubles.get(name, "")
        return StudentTrace(samples, stats, began_s, ended_s, trouble, calls)
