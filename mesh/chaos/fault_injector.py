"""Injects faults into the mesh of a chaos run, heals them, and records both."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...runtime.errors import ProcessFailed
from .fault_plan import KIND_BY_NAME, ChaosSettings, Fault, is_allowed
from .processes import STOP_TIMEOUT_S, ChaosMesh
from .proxy import ChaosProxy
from .response_corruptor import CORRUPTIONS, ResponseCorruptor
from .run_trace import FaultRecord, read_stats

#: Delay of each chunk by "delay-teacher" in each direction, in seconds.
DELAY_S = 0.2
#: If a fault is healed late, it counts as active for its settle time after the healing, but at most
#: for these seconds.
LATE_SETTLE_S = 2.0
#: Kinds that are healed as soon as they are injected.
_INSTANT_KINDS = ("break-teacher", "kill-engine")


class FaultInjector:
    """Injects the faults of a plan into `mesh`; threads restart and drain processes.

    If processes start more slowly than planned, faults that would exceed the limits of the plan are
    skipped.

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
        self._records: dict[int, FaultRecord] = {}
        self._effects_before: dict[int, int] = {}  # by the number of the fault
        self._threads: list[threading.Thread] = []
        self._closing = False

    @property
    def records(self) -> tuple[FaultRecord, ...]:
        """Records of the faults so far, in order, including skipped ones."""
        with self._lock:
            return tuple(self._records.values())

    def inject(self, fault: Fault) -> str:
        """Begin a fault; return the reason if it was skipped, otherwise an empty text."""
        active = self._active_faults()
        with self._lock:
            self._records[fault.number] = FaultRecord(fault, self._clock())
            self._effects_before[fault.number] = self._count_effects(fault)
        if is_allowed(KIND_BY_NAME[fault.kind], active, self._settings):
            skipped = self._begin(fault)
        else:
            skipped = "earlier faults last longer than planned"
        if skipped:
            self._record(fault, healed_s=self._clock(), skipped=skipped)
        elif fault.kind in _INSTANT_KINDS:
            self._record_healed(fault)
        return skipped

    def heal(self, fault: Fault) -> None:
        """Undo a fault, unless it is healed or was skipped.

        Killed processes are restarted, and guests are drained.
        """
        with self._lock:
            record = self._records[fault.number]
        if record.healed_s is not None:
            return
        match fault.kind:
            case "kill-teacher" | "kill-manager" | "kill-redis":
                self._in_thread(self._restart, fault)
            case "add-teacher":
                self._in_thread(self._drain, fault)
            case _:
                self._undo(fault)
                self._record_healed(fault)

    def heal_all(self) -> None:
        """Undo all faults that last until they are undone, and start no more processes."""
        with self._lock:
            self._closing = True
        for record in self.records:
            if record.healed_s is None:
                self._undo(record.fault)

    def close(self) -> None:
        """Join the threads. Call it after the processes have been stopped."""
        self._closing = True
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)

    def _active_faults(self) -> list[Fault]:
        """Return the faults that are not healed or have not settled."""
        now = self._clock()
        active = []
        for one in self.records:
            settle_s = min(LATE_SETTLE_S, KIND_BY_NAME[one.fault.kind].settle_s)
            if not one.skipped and now < max(one.fault.settled_s, one.ends_s + settle_s):
                active.append(one.fault)
        return active

    # --- each kind

    def _begin(self, fault: Fault) -> str:
        """Begin a fault; return the reason if it cannot begin, otherwise an empty text."""
        if fault.kind == "kill-engine":
            return self._kill_engine(fault.target)
        target = self._mesh.processes[fault.target]
        if fault.kind == "add-teacher":
            if target.alive:
                return "it was already running"
            target.start()
            return ""
        if not target.is_ready:
            return "it was not up"
        match fault.kind:
            case "kill-teacher" | "kill-manager" | "kill-redis":
                target.process.kill()
            case "suspend-teacher":
                target.process.send_signal(signal.SIGSTOP)
            case "drain-teacher":
                self._in_thread(self._drain, fault)
        for link in self._links(fault):
            if isinstance(link, ResponseCorruptor):
                link.use(fault.kind)
            elif fault.kind == "break-teacher":
                link.close_connections()
            elif fault.kind == "delay-teacher":
                link.delay(DELAY_S)
            else:
                link.hold()
        return ""

    def _kill_engine(self, student: str) -> str:
        stats = read_stats(self._mesh.student_configs[student].file("stats"))
        try:
            os.kill(stats[-1].engine_pid, signal.SIGKILL)
        except (IndexError, ProcessLookupError):
            return "it was not up"
        return ""

    def _undo(self, fault: Fault) -> None:
        """Undo a fault that lasts until it is undone; do nothing for other kinds of faults."""
        if fault.kind == "suspend-teacher":
            self._mesh.processes[fault.target].process.send_signal(signal.SIGCONT)
        for link in self._links(fault):
            link.heal()

    def _links(self, fault: Fault) -> Sequence[ChaosProxy | ResponseCorruptor]:
        """Return the proxies or the corruptor of a fault; empty for a fault of a process."""
        if not KIND_BY_NAME[fault.kind].effect_unit:
            return ()
        if fault.kind == "silence-manager":
            return (self._mesh.manager_proxy,)
        teacher = self._mesh.teachers[fault.target]
        if fault.kind in CORRUPTIONS:
            return (teacher.corruptor,)
        return (teacher.redis_proxy,) if fault.kind == "partition-teacher" else teacher.proxies

    def _count_effects(self, fault: Fault) -> int:
        """Return the effects on the fault's target since the run began."""
        return sum(link.effects for link in self._links(fault))

    # --- work in threads

    def _restart(self, fault: Fault) -> None:
        """Start the target repeatedly until it is ready, as a teacher exits if Redis is down."""
        target = self._mesh.processes[fault.target]
        while True:
            with self._lock:  # no process starts after `heal_all`
                if self._closing:
                    return
                target.start()
            with contextlib.suppress(ProcessFailed):
                target.wait_ready()
                self._record(fault, healed_s=self._clock())
                return

    def _drain(self, fault: Fault) -> None:
        """Drain a teacher. This heals the fault of a guest; a teacher of the mesh is restarted."""
        teacher = self._mesh.teachers[fault.target]
        was_ready = teacher.is_ready  # a teacher that is still starting may exit with any code
        teacher.process.send_signal(signal.SIGTERM)
        code = teacher.process.wait(STOP_TIMEOUT_S)
        if was_ready and code != 0 and not self._closing:
            self._record(fault, trouble=f"it drained with exit code {code}, not 0")
        if fault.kind == "drain-teacher":
            self._restart(fault)
        else:
            self._record(fault, healed_s=self._clock())

    def _in_thread(self, work: Callable[[Fault], None], fault: Fault) -> None:
        thread = threading.Thread(target=work, args=(fault,), name="edl-chaos-heal", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _record_healed(self, fault: Fault) -> None:
        effects = None
        if KIND_BY_NAME[fault.kind].effect_unit:
            effects = self._count_effects(fault) - self._effects_before[fault.number]
        self._record(fault, healed_s=self._clock(), effects=effects)

    def _record(self, fault: Fault, **changes: object) -> None:
        with self._lock:
            record = self._records[fault.number]
            self._records[fault.number] = replace(record, **changes)  # type: ignore[arg-type]
