"""Injects faults into the mesh of a chaos run, heals them, and records both."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .fault_plan import KIND_BY_NAME, ChaosSettings, Fault, FaultTarget, is_allowed
from .processes import START_TIMEOUT_S, STOP_TIMEOUT_S, ChaosMesh, RestartableProcess
from .proxy import ChaosProxy, ProxyGroup
from .response_corruptor import CORRUPTIONS
from .run_trace import InjectedFault, latest_stats

#: Delay of each chunk by "delay-teacher", in each direction.
DELAY_S = 0.2
#: A healed fault counts as active for its settle time, or for this time if that is shorter.
LATE_SETTLE_S = 2.0
#: Kinds that are healed as soon as they are injected.
_INSTANT = ("break-teacher", "kill-engine")


class FaultInjector:
    """Injects the faults of a plan into `mesh`; threads do what takes time.

    A fault that would exceed the limits of the plan, as processes start more slowly than planned,
    is skipped.

    Args:
        mesh: the processes and proxies.
        settings: settings of the plan.
        clock: returns the seconds since the run began.
    """

    def __init__(
        self, mesh: ChaosMesh, settings: ChaosSettings, clock: Callable[[], float]
    ) -> None:
        self._mesh = mesh
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._injected: dict[int, InjectedFault] = {}
        self._effects_before: dict[int, int] = {}  # by fault
        self._threads: list[threading.Thread] = []
        self._closing = False

    @property
    def injected(self) -> tuple[InjectedFault, ...]:
        """Faults so far in order, including skipped ones."""
        with self._lock:
            return tuple(self._injected.values())

    def inject(self, fault: Fault) -> str:
        """Begin a fault; return the reason if it was skipped, otherwise an empty text."""
        active = self._active_faults()
        with self._lock:
            self._injected[fault.number] = InjectedFault(fault, self._clock())
            self._effects_before[fault.number] = self._count_effects(fault) or 0
        if is_allowed(KIND_BY_NAME[fault.kind], active, self._settings):
            skipped = self._inject(fault)
        else:
            skipped = "earlier faults last longer than planned"
        if skipped:
            self._record(fault, healed_s=self._clock(), skipped=skipped)
        elif fault.kind in _INSTANT:
            self._record_healed(fault)
        return skipped

    def heal(self, fault: Fault) -> None:
        """Undo a fault, or restart the process that it killed, unless it is healed or skipped."""
        with self._lock:
            injected = self._injected[fault.number]
        if injected.healed_s is not None:
            return
        match fault.kind:
            case "kill-teacher":
                self._restart(fault, self._mesh.teachers[fault.target])
            case "kill-manager":
                self._restart(fault, self._mesh.manager)
            case "kill-redis":
                self._restart(fault, self._mesh.redis)
            case "add-teacher":
                self._drain(fault, restart=False)
            case _:
                self._undo(fault)
                self._record_healed(fault)

    def heal_all(self) -> None:
        """Undo all faults, and start no more processes, at the end of the run."""
        with self._lock:
            self._closing = True
        for injected in self.injected:
            if injected.healed_s is None:
                self._undo(injected.fault)

    def close(self) -> None:
        """Join the threads. Call it after the processes have been stopped."""
        self._closing = True
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)

    def _active_faults(self) -> list[Fault]:
        """Return the faults that are not healed or have not settled."""
        now = self._clock()
        return [
            one.fault
            for one in self.injected
            if not one.skipped
            and (
                one.healed_s is None
                or now < one.fault.settled_s
                or now < one.healed_s + min(LATE_SETTLE_S, KIND_BY_NAME[one.fault.kind].settle_s)
            )
        ]

    # --- each kind

    def _inject(self, fault: Fault) -> str:
        match KIND_BY_NAME[fault.kind].target:
            case FaultTarget.STUDENT:
                return self._kill_engine(fault.target)
            case FaultTarget.GUEST:
                return self._start_guest(fault)
            case FaultTarget.CONTROL_PLANE:
                return self._strike_control_plane(fault)
            case FaultTarget.TEACHER:
                return self._strike_teacher(fault)

    def _strike_teacher(self, fault: Fault) -> str:
        teacher = self._mesh.teachers[fault.target]
        process = teacher.process
        if process is None or not teacher.is_ready:
            return "it was not up"
        match fault.kind:
            case "kill-teacher":
                process.kill()
            case "suspend-teacher":
                process.send_signal(signal.SIGSTOP)
            case "silence-teacher":
                teacher.proxy.hold()
            case "partition-teacher":
                teacher.redis_proxy.hold()
            case "break-teacher":
                teacher.proxy.close_connections()
            case "delay-teacher":
                teacher.proxy.delay(DELAY_S)
            case "drain-teacher":
                self._drain(fault, restart=True)
            case corruption:
                teacher.corruptor.use(corruption)
        return ""

    def _strike_control_plane(self, fault: Fault) -> str:
        if fault.kind == "silence-manager":
            self._mesh.manager_proxy.hold()
            return ""
        struck = self._mesh.redis if fault.kind == "kill-redis" else self._mesh.manager
        if struck.process is None or not struck.is_ready:
            return "it was not up"
        struck.process.kill()
        return ""

    def _kill_engine(self, student: str) -> str:
        stats = latest_stats(self._mesh.student_configs[student].stats_file)
        try:
            if stats is not None:
                os.kill(stats.engine_pid, signal.SIGKILL)
                return ""
        except ProcessLookupError:
            pass
        return "it was not up"

    def _start_guest(self, fault: Fault) -> str:
        guest = self._mesh.teachers[fault.target]
        if guest.alive:
            return "it was already running"
        guest.start()
        return ""

    def _undo(self, fault: Fault) -> None:
        """Undo a fault of a kind that lasts until it is undone; do nothing for other kinds."""
        match fault.kind:
            case "suspend-teacher":
                if (process := self._mesh.teachers[fault.target].process) is not None:
                    process.send_signal(signal.SIGCONT)
            case "silence-manager":
                self._mesh.manager_proxy.heal()
            case "silence-teacher" | "delay-teacher" | "partition-teacher":
                self._teacher_proxy(fault).heal()
            case corruption if corruption in CORRUPTIONS:
                self._mesh.teachers[fault.target].corruptor.use(None)

    def _count_effects(self, fault: Fault) -> int | None:
        """Return the effects on the fault's target since the run began; None: no traffic fault."""
        match fault.kind:
            case "silence-manager":
                return self._mesh.manager_proxy.effects
            case "silence-teacher" | "delay-teacher" | "partition-teacher" | "break-teacher":
                return self._teacher_proxy(fault).effects
            case corruption if corruption in CORRUPTIONS:
                return self._mesh.teachers[fault.target].corruptor.corrupted
        return None

    def _teacher_proxy(self, fault: Fault) -> ChaosProxy | ProxyGroup:
        teacher = self._mesh.teachers[fault.target]
        return teacher.redis_proxy if fault.kind == "partition-teacher" else teacher.proxy

    # --- work in threads

    def _restart(self, fault: Fault, process: RestartableProcess) -> None:
        """Start the process again; the fault is healed once it is ready."""
        self._in_thread(partial(self._start_until_ready, fault, process))

    def _start_until_ready(self, fault: Fault, process: RestartableProcess) -> None:
        """Start a process until it becomes ready: a teacher exits if Redis is down."""
        while True:
            with self._lock:  # no process starts after `heal_all`
                if self._closing:
                    return
                process.start(lambda: self._record(fault, healed_s=self._clock()))
            if process.becomes_ready(START_TIMEOUT_S):
                return

    def _drain(self, fault: Fault, *, restart: bool) -> None:
        """Drain a teacher; the fault is healed once it has exited, or is ready after a restart."""
        teacher = self._mesh.teachers[fault.target]
        was_ready = teacher.is_ready  # a teacher that is still starting may exit with any code
        if teacher.process is not None:
            teacher.process.send_signal(signal.SIGTERM)
        self._in_thread(partial(self._finish_drain, fault, teacher, was_ready, restart))

    def _finish_drain(
        self, fault: Fault, teacher: RestartableProcess, was_ready: bool, restart: bool
    ) -> None:
        code = None if teacher.process is None else teacher.process.wait(STOP_TIMEOUT_S)
        if was_ready and code != 0 and not self._closing:
            self._record(fault, trouble=f"it drained with exit code {code}, not 0")
        if restart:
            self._start_until_ready(fault, teacher)
        else:
            self._record(fault, healed_s=self._clock())

    def _in_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="edl-chaos-heal", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _record_healed(self, fault: Fault) -> None:
        total, before = self._count_effects(fault), self._effects_before[fault.number]
        effects = None if total is None else total - before
        self._record(fault, healed_s=self._clock(), effects=effects)

    def _record(self, fault: Fault, **changes: object) -> None:
        with self._lock:
            injected = self._injected[fault.number]
            self._injected[fault.number] = replace(injected, **changes)  # type: ignore[arg-type]
