"""Carries faults out: begins each one, takes it away again, and notes when."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .cast import END_S, START_S, Actor, Cast
from .doorway import Doorway
from .faults import BY_NAME, Fault, Whom
from .gate import Gate
from .lies import LIES
from .plan import Stage, is_bearable
from .trace import Done, latest_figures

#: How late each piece of data is on a slow line, in each direction.
DELAY_S = 0.2
#: What was started again needs as long, at least, to find its place.
STEADY_S = 2.0
#: What is over as soon as it is done.
_AT_ONCE = ("break-teacher", "kill-engine")


class Director:
    """Does to `cast` what a plan says; whatever takes time is waited for in a thread.

    Args:
        cast: the processes and gates.
        stage: what the plan was made for. On a machine on which processes take longer to start than
            the plan has allowed for, what would be too much at once is skipped.
        clock: seconds since the run began.
    """

    def __init__(self, cast: Cast, stage: Stage, clock: Callable[[], float]) -> None:
        self._cast = cast
        self._stage = stage
        self._clock = clock
        self._lock = threading.Lock()
        self._done: dict[int, Done] = {}
        self._struck_before: dict[int, int] = {}  # by fault
        self._waiting: list[threading.Thread] = []
        self._ending = False

    @property
    def done(self) -> tuple[Done, ...]:
        """What was done so far, in order."""
        with self._lock:
            return tuple(self._done.values())

    def begin(self, fault: Fault) -> str:
        """Do it; returns why it cannot be done now, empty when it was."""
        busy = self._busy()
        with self._lock:
            self._done[fault.number] = Done(fault, self._clock())
            self._struck_before[fault.number] = self._struck(fault) or 0
        if is_bearable(BY_NAME[fault.kind], busy, self._stage):
            skipped = self._begin(fault)
        else:
            skipped = "what was broken before takes longer"
        if skipped:
            self._note(fault, healed_s=self._clock(), skipped=skipped)
        elif fault.kind in _AT_ONCE:
            self._note_over(fault)
        return skipped

    def heal(self, fault: Fault) -> None:
        """Take it away, or start anew what it has killed; without effect on what was skipped."""
        with self._lock:
            done = self._done[fault.number]
        if done.healed_s is not None:
            return
        match fault.kind:
            case "kill-teacher":
                self._start(fault, self._cast.teachers[fault.target])
            case "kill-manager":
                self._start(fault, self._cast.manager)
            case "kill-redis":
                self._start(fault, self._cast.redis)
            case "add-teacher":
                self._drain(fault, again=False)
            case _:
                self._lift(fault)
                self._note_over(fault)

    def heal_all(self) -> None:
        """Take away whatever lasts, and start nothing more: the run ends."""
        with self._lock:
            self._ending = True
        for done in self.done:
            if done.healed_s is None:
                self._lift(done.fault)

    def close(self) -> None:
        """Wait for the threads; the processes have ended."""
        self._ending = True
        for thread in self._waiting:
            thread.join(END_S)

    def _busy(self) -> list[Fault]:
        """What is not over, or not settled yet."""
        now = self._clock()
        return [
            one.fault
            for one in self.done
            if not one.skipped
            and (
                one.healed_s is None
                or now < one.fault.over_s
                or now < one.healed_s + min(STEADY_S, BY_NAME[one.fault.kind].settles_s)
            )
        ]

    # --- each kind

    def _begin(self, fault: Fault) -> str:
        match BY_NAME[fault.kind].whom:
            case Whom.STUDENT:
                return self._kill_engine(fault.target)
            case Whom.GUEST:
                return self._invite(fault)
            case Whom.CONTROL:
                return self._strike_control(fault)
            case Whom.TEACHER:
                return self._strike_teacher(fault)

    def _strike_teacher(self, fault: Fault) -> str:
        teacher = self._cast.teachers[fault.target]
        process = teacher.process
        if process is None or not teacher.serves:
            return "it was not up"
        match fault.kind:
            case "kill-teacher":
                process.kill()
            case "suspend-teacher":
                process.send_signal(signal.SIGSTOP)
            case "silence-teacher":
                teacher.door.silence()
            case "part-teacher":
                teacher.line.silence()
            case "break-teacher":
                teacher.door.cut()
            case "delay-teacher":
                teacher.door.delay(DELAY_S)
            case "drain-teacher":
                self._drain(fault, again=True)
            case lie:
                teacher.liar.tell(lie)
        return ""

    def _strike_control(self, fault: Fault) -> str:
        if fault.kind == "silence-manager":
            self._cast.manager_door.silence()
            return ""
        actor = self._cast.redis if fault.kind == "kill-redis" else self._cast.manager
        if actor.process is None or not actor.serves:
            return "it was not up"
        actor.process.kill()
        return ""

    def _kill_engine(self, student: str) -> str:
        figures = latest_figures(self._cast.parts[student].figures)
        try:
            if figures is not None:
                os.kill(figures.engine_pid, signal.SIGKILL)
                return ""
        except ProcessLookupError:
            pass
        return "it was not up"

    def _invite(self, fault: Fault) -> str:
        guest = self._cast.teachers[fault.target]
        if guest.alive:
            return "it was there already"
        guest.start()
        return ""

    def _lift(self, fault: Fault) -> None:
        """Take away what lasts by itself."""
        match fault.kind:
            case "suspend-teacher":
                if (process := self._cast.teachers[fault.target].process) is not None:
                    process.send_signal(signal.SIGCONT)
            case "silence-manager":
                self._cast.manager_door.heal()
            case "silence-teacher" | "delay-teacher" | "part-teacher":
                for gate in self._gates(fault):
                    gate.heal()
            case lie if lie in LIES:
                self._cast.teachers[fault.target].liar.tell(None)

    def _struck(self, fault: Fault) -> int | None:
        """How many of what it meets its target has had done to since the run began."""
        match fault.kind:
            case "silence-manager":
                return self._cast.manager_door.struck
            case "silence-teacher" | "delay-teacher" | "part-teacher" | "break-teacher":
                return sum(gate.struck for gate in self._gates(fault))
            case lie if lie in LIES:
                return self._cast.teachers[fault.target].liar.spoilt
        return None

    def _gates(self, fault: Fault) -> tuple[Gate | Doorway, ...]:
        teacher = self._cast.teachers[fault.target]
        return (teacher.line,) if fault.kind == "part-teacher" else (teacher.door,)

    # --- what takes time

    def _start(self, fault: Fault, actor: Actor) -> None:
        """Start it again; the fault is healed when it is ready."""
        self._wait(partial(self._until_ready, fault, actor))

    def _until_ready(self, fault: Fault, actor: Actor) -> None:
        """As a supervisor does: a teacher ends, for one, if Redis is down when it starts."""
        while True:
            with self._lock:  # nothing begins once the run ends
                if self._ending:
                    return
                actor.start(lambda: self._note(fault, healed_s=self._clock()))
            if actor.settled(START_S):
                return

    def _drain(self, fault: Fault, *, again: bool) -> None:
        """SIGTERM; the fault is healed when it has ended, or if `again` serves anew."""
        teacher = self._cast.teachers[fault.target]
        served = teacher.serves  # one that still starts may end as it likes
        if teacher.process is not None:
            teacher.process.send_signal(signal.SIGTERM)
        self._wait(partial(self._after_drain, fault, teacher, served, again))

    def _after_drain(self, fault: Fault, teacher: Actor, served: bool, again: bool) -> None:
        code = None if teacher.process is None else teacher.process.wait(END_S)
        if served and code != 0 and not self._ending:
            self._note(fault, trouble=f"it drained with exit code {code}, not 0")
        if again:
            self._until_ready(fault, teacher)
        else:
            self._note(fault, healed_s=self._clock())

    def _wait(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="edl-chaos-wait", daemon=True)
        self._waiting = [one for one in self._waiting if one.is_alive()] + [thread]
        thread.start()

    def _note_over(self, fault: Fault) -> None:
        struck, before = self._struck(fault), self._struck_before[fault.number]
        effects = None if struck is None else struck - before
        self._note(fault, healed_s=self._clock(), effects=effects)

    def _note(self, fault: Fault, **changes: object) -> None:
        with self._lock:
            self._done[fault.number] = replace(self._done[fault.number], **changes)  # type: ignore[arg-type]
