"""A chaos run from start to end: the cast, the plan carried out, the trace, what was found."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ...errors import ProcessFailed
from ...lifecycle import Stop
from .cast import SLICE_S, START_S, Cast
from .checks import check_invariants, whole_again
from .director import Director
from .faults import BY_NAME, Fault
from .leaks import Belongings
from .plan import make_plan
from .report import ChaosReport
from .settings import ChaosSettings
from .trace import RunTrace, Seen, read_figures, read_samples
from .training import Training
from .watching import Watcher

#: How long the mesh may take, at the end, to be whole.
SETTLE_S = 30.0
_LOOK_S = 0.5


def run_chaos(
    settings: ChaosSettings,
    folder: Path,
    belongings: Belongings,
    *,
    say: Callable[[str], None],
    stop: Stop,
    check: Callable[[], None],
) -> ChaosReport:
    """Start a mesh, break it as the plan says, and check what came of it.

    Args:
        settings: what to run.
        folder: for logs and what students write.
        belongings: what there was before; `left` of it is a part of the check.
        say: told of each fault as it begins.
        stop: ends the run early; what was seen until then is checked.
        check: called while the mesh starts; what it raises ends that, and nothing is checked.

    Raises:
        ProcessFailed: the mesh did not start.
    """
    plan = make_plan(settings.seed, settings.stage)
    run = _Run(settings, folder)
    with ExitStack() as ending:
        ending.callback(run.director.close)
        ending.callback(run.cast.end)
        ending.callback(run.training.end)
        run.open(check)
        ending.callback(run.watcher.stop)
        run.carry_out(plan, say, stop)
        run.settle(stop)
        run.end_students()
    trace = run.trace(belongings.left())
    interrupted = stop.requested
    findings = check_invariants(trace, interrupted=interrupted)
    return ChaosReport(settings, plan, trace, findings, run.ended_s, interrupted)


class _Run:
    """One run; its clock begins when every student has its first sample."""

    def __init__(self, settings: ChaosSettings, folder: Path) -> None:
        self._settings = settings
        self._began = time.monotonic()
        self._opened_s = 0.0
        self._troubles: dict[str, str] = {}
        self.ended_s = 0.0
        self.cast = Cast(settings, folder, self._began)
        self.training = Training(self.cast.url, folder)
        self.director = Director(self.cast, settings.stage, self.clock)
        self.watcher = Watcher(self.cast.url, self.clock)

    def clock(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began - self._opened_s

    def open(self, check: Callable[[], None]) -> None:
        """Start everybody, and wait until students train. Raises ProcessFailed."""
        self.cast.start(check)
        self.training.open(check)
        self.cast.start_students()
        deadline = time.monotonic() + START_S
        while not all(len(read_samples(part.samples)) for part in self.cast.parts.values()):
            check()
            for process in self.cast.students.values():
                if not process.alive or time.monotonic() > deadline:
                    raise ProcessFailed(
                        f"{process.name} got no sample: {' | '.join(process.tail(2))}"
                    )
            time.sleep(SLICE_S)
        self.cast.start_misconfigured(check)
        self._opened_s = time.monotonic() - self._began
        self.watcher.start()

    def carry_out(self, plan: tuple[Fault, ...], say: Callable[[str], None], stop: Stop) -> None:
        """Begin each fault and take it away, in time; returns early when `stop` is requested."""
        moments = [(fault.at_s, True, fault) for fault in plan]
        moments += [(one.at_s + one.lasts_s, False, one) for one in plan if one.lasts_s]
        moments.sort(key=lambda moment: (moment[0], moment[1], moment[2].number))
        for at_s, begins, fault in moments:
            if stop.wait(max(0.0, at_s - self.clock())):
                return
            if not begins:
                self.director.heal(fault)
                continue
            skipped = self.director.begin(fault)
            lasts = f" for {fault.lasts_s:.1f} s" if fault.lasts_s else ""
            say(
                f"{self.clock():7.1f} s  {fault.target}: {BY_NAME[fault.kind].text}{lasts}"
                + (f" (skipped: {skipped})" if skipped else "")
            )
        stop.wait(max(0.0, self._settings.seconds - self.clock()))

    def settle(self, stop: Stop) -> None:
        """Wait until the mesh is whole, or the time for that is over."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and not stop.wait(_LOOK_S):
            if whole_again(self.trace()).held:
                return

    def end_students(self) -> None:
        """Tell them to end, once nothing holds them up any more."""
        self.director.heal_all()
        self.watcher.stop()
        self.ended_s = self.clock()
        self._troubles = self.cast.end_students()
        self.training.end()

    def trace(self, left: tuple[str, ...] = ()) -> RunTrace:
        """What was seen so far."""
        return RunTrace(
            self._settings.teacher_names,
            {name: self._seen(name) for name in self.cast.parts},
            self.director.done,
            self.watcher.snapshots,
            self.watcher.stalls,
            left,
            self.watcher.load,
            self.training.seen,
            self._settings.refusing_names,
            self._settings.misconfigured_names,
        )

    def _seen(self, name: str) -> Seen:
        part = self.cast.parts[name]
        samples = read_samples(part.samples).copy()
        samples["at_s"] -= self._opened_s
        figures = tuple(one.later(-self._opened_s) for one in read_figures(part.figures))
        began_s = float(samples["at_s"][0]) if len(samples) else 0.0
        return Seen(
            samples, figures, began_s, self.ended_s or self.clock(), self._troubles.get(name, "")
        )
