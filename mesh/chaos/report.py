"""What a chaos run found: in words, and as JSON; the seed that repeats it stands first."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .checks import Finding
from .faults import BY_NAME, Fault
from .recovery import recovery_s
from .settings import ChaosSettings
from .trace import Done, RunTrace


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """Everything that a run found.

    Attributes:
        settings: what was run.
        plan: what was to be broken.
        trace: what was seen.
        findings: the invariants, checked.
        seconds: how long students trained, from the first sample to the last.
        interrupted: it was ended early: less was broken than was planned.
    """

    settings: ChaosSettings
    plan: tuple[Fault, ...]
    trace: RunTrace
    findings: tuple[Finding, ...]
    seconds: float
    interrupted: bool

    @property
    def held(self) -> bool:
        """Whether every invariant holds."""
        return all(finding.held for finding in self.findings)

    @property
    def done(self) -> tuple[Done, ...]:
        """Faults that were carried out, and had an effect."""
        return tuple(one for one in self.trace.faults if not (one.skipped or one.in_vain))


def lines(report: ChaosReport) -> Iterator[str]:
    """The report in words, line by line."""
    deceive = " --deceive" if report.settings.deceive else ""
    minutes = report.settings.seconds / 60
    seed = report.settings.seed
    yield f"seed {seed}: edl chaos --minutes {minutes:g} --seed {seed}{deceive}"
    early = f" of {report.settings.seconds:.0f}, interrupted" if report.interrupted else ""
    skipped = sum(bool(one.skipped) for one in report.trace.faults)
    in_vain = sum(one.in_vain for one in report.trace.faults)
    counts = f"{len(report.done)} faults, {in_vain} without effect, {skipped} skipped"
    yield f"ran {report.seconds:.0f} s{early}: {counts}"
    stalled_s = sum(end - begin for begin, end in report.trace.stalls)
    yield f"machine: load up to {report.trace.load:.1f}, stood still for {stalled_s:.1f} s"
    yield ""
    for one in report.trace.faults:
        yield _fault_line(report.trace, one)
    yield ""
    yield from _by_kind(report)
    yield ""
    for finding in report.findings:
        yield f"{'held  ' if finding.held else 'BROKEN'}  {finding.name} ({finding.checked})"
        for text in finding.broken:
            yield f"        {text}"


def as_json(report: ChaosReport) -> dict[str, Any]:
    """The same for programs; the keys are those of the values' classes."""
    return {
        "seed": report.settings.seed,
        "settings": asdict(report.settings),
        "seconds": report.seconds,
        "interrupted": report.interrupted,
        "held": report.held,
        "invariants": [{**asdict(one), "held": one.held} for one in report.findings],
        "students": {
            name: {"samples": len(seen.samples), "trouble": seen.trouble}
            for name, seen in report.trace.students.items()
        },
        "load": report.trace.load,
        "stalls": report.trace.stalls,
        "planned": len(report.plan),
        "faults": [
            {
                **asdict(one.fault),
                "at_s": one.at_s,
                "healed_s": one.healed_s,
                "recovery_s": None if one.skipped else recovery_s(report.trace, one),
                "effects": one.effects,
                "skipped": one.skipped,
                "trouble": one.trouble,
            }
            for one in report.trace.faults
        ],
    }


def _fault_line(trace: RunTrace, one: Done) -> str:
    text = f"{one.at_s:7.1f} s  {one.fault.kind:<16} {one.fault.target:<10}"
    if one.skipped:
        return f"{text} skipped: {one.skipped}"
    met = "" if one.effects is None else f"{one.effects} {BY_NAME[one.fault.kind].meets}"
    if one.in_vain:
        return f"{text} without effect: {met}"
    lasted = "not over" if one.healed_s is None else f"{one.healed_s - one.at_s:.1f} s"
    took_s = recovery_s(trace, one)
    recovered = "not as before in this run" if took_s is None else f"as before {took_s:.1f} s later"
    said = [f"lasted {lasted}", recovered, *filter(None, [met])]
    return f"{text} {', '.join(said)}{one.trouble and f'; {one.trouble}'}"


def _by_kind(report: ChaosReport) -> Iterator[str]:
    for name, kind in BY_NAME.items():
        done = [one for one in report.done if one.fault.kind == name]
        if not done:
            continue
        took = [took_s for one in done if (took_s := recovery_s(report.trace, one)) is not None]
        times = (
            f"as before after {statistics.median(took):.1f} s (median), {max(took):.1f} s (longest)"
            if took
            else "never as before"
        )
        yield f"{len(done):4} x {name:<16} {kind.text}: {times}"
