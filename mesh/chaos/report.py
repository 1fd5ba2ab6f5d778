"""Report of a chaos run, as text and as JSON; it begins with the seed, to repeat the run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .fault_plan import KIND_BY_NAME, ChaosSettings, Fault
from .invariants import InvariantResult
from .liveness import recovery_s
from .run_trace import FaultRecord, RunTrace


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """Results of a run.

    Attributes:
        settings: settings of the run.
        plan: planned faults.
        trace: trace of the run.
        results: results of the invariants.
        seconds: length of the run, including the wait for recovery.
        interrupted: the run was ended early; some planned faults may not have been injected.
    """

    settings: ChaosSettings
    plan: tuple[Fault, ...]
    trace: RunTrace
    results: tuple[InvariantResult, ...]
    seconds: float
    interrupted: bool

    @property
    def held(self) -> bool:
        """Whether every checked invariant holds; an interrupted run checks no recovery."""
        return all(result.held for result in self.results)

    @property
    def effective_faults(self) -> tuple[FaultRecord, ...]:
        """Faults that were neither skipped nor without effect."""
        return tuple(one for one in self.trace.faults if not (one.skipped or one.without_effect))


def report_lines(report: ChaosReport) -> Iterator[str]:
    """Yield the lines of the text report."""
    deceive = " --deceive" if report.settings.deceive else ""
    minutes = report.settings.seconds / 60
    seed = report.settings.seed
    yield f"seed {seed}: edl chaos --minutes {minutes:g} --seed {seed}{deceive}"
    early = f" of {report.settings.seconds:.0f}, interrupted" if report.interrupted else ""
    skipped = sum(bool(one.skipped) for one in report.trace.faults)
    without_effect = sum(one.without_effect for one in report.trace.faults)
    faults = len(report.effective_faults)
    counts = f"{faults} faults, {without_effect} without effect, {skipped} skipped"
    yield f"ran {report.seconds:.0f} s{early}: {counts}"
    stalled_s = sum(end - begin for begin, end in report.trace.stalls)
    yield f"machine: load up to {report.trace.max_load:.1f}, stalled for {stalled_s:.1f} s"
    yield ""
    for one in report.trace.faults:
        yield _fault_line(report.trace, one)
    yield ""
    yield from _lines_by_kind(report)
    yield ""
    for result in report.results:
        yield f"{'held  ' if result.held else 'BROKEN'}  {result.name} ({result.checked})"
        for text in result.broken:
            yield f"        {text}"


def as_json(report: ChaosReport) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "seed": report.settings.seed,
        "settings": asdict(report.settings),
        "seconds": report.seconds,
        "interrupted": report.interrupted,
        "held": report.held,
        "invariants": [{**asdict(one), "held": one.held} for one in report.results],
        "students": {
            name: {
                "samples": len(student_trace.samples),
                "calls": len(student_trace.calls),
                "trouble": student_trace.trouble,
            }
            for name, student_trace in report.trace.students.items()
        },
        "load": report.trace.max_load,
        "stalls": report.trace.stalls,
        "planned": len(report.plan),
        "faults": [_fault_json(report.trace, one) for one in report.trace.faults],
    }


def _fault_json(trace: RunTrace, one: FaultRecord) -> dict[str, Any]:
    values = asdict(one)
    recovered_s = None if one.skipped else recovery_s(trace, one)
    return {**values.pop("fault"), **values, "recovery_s": recovered_s}


def _fault_line(trace: RunTrace, one: FaultRecord) -> str:
    text = f"{one.at_s:7.1f} s  {one.fault.kind:<17} {one.fault.target:<10}"
    if one.skipped:
        return f"{text} skipped: {one.skipped}"
    unit = KIND_BY_NAME[one.fault.kind].effect_unit
    effects = "" if one.effects is None else f"{one.effects} {unit}"
    if one.without_effect:
        return f"{text} without effect: {effects}"
    lasted = "not healed" if one.healed_s is None else f"lasted {one.healed_s - one.at_s:.1f} s"
    delay_s = recovery_s(trace, one)
    recovered = "no recovery in this run" if delay_s is None else f"recovery {delay_s:.1f} s later"
    parts = [lasted, recovered, *filter(None, [effects])]
    return f"{text} {', '.join(parts)}{one.trouble and f'; {one.trouble}'}"


def _lines_by_kind(report: ChaosReport) -> Iterator[str]:
    for name, kind in KIND_BY_NAME.items():
        faults = [one for one in report.effective_faults if one.fault.kind == name]
        if not faults:
            continue
        recoveries_s = [
            seconds for one in faults if (seconds := recovery_s(report.trace, one)) is not None
        ]
        times = (
            f"recovery in {statistics.median(recoveries_s):.1f} s (median),"
            f" {max(recoveries_s):.1f} s (longest)"
            if recoveries_s
            else "no recovery"
        )
        yield f"{len(faults):4} x {name:<17} {kind.description}: {times}"
