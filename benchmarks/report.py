"""The one form of every benchmark: rows of figures, goals with limits, the machine they hold for.

A benchmark is a module of this folder with a function `run(quick: bool) -> Report`; the first line
of its docstring is what `edl bench --help` says of it. Its figures come from `interleaved`, its
goals from `Goal.judge`.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

Op = Literal[">=", "<=", "=="]
Row = Mapping[str, str | float | int | bool]

#: Fewer pairs than this say too little to fail anybody.
MIN_ROUNDS = 15
RESAMPLES = 2000
LIBRARIES = (
    "numpy",
    "grpcio",
    "protobuf",
    "redis",
    "paddlepaddle",
    "paddlepaddle-gpu",
    "torch",
    "timm",
    "onnxruntime-gpu",
)
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over rounds and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Estimate:
        """From one figure per round, by bootstrap: no assumption on how the noise is spread.

        The resampling is seeded, so that equal figures give equal intervals.

        Raises:
            ValueError: fewer than `MIN_ROUNDS` samples.
        """
        if len(samples) < MIN_ROUNDS:
            raise ValueError(f"an interval needs {MIN_ROUNDS} rounds, not {len(samples)}")
        rng = random.Random(0)
        medians = sorted(
            statistics.median(rng.choices(samples, k=len(samples))) for _ in range(RESAMPLES)
        )
        tail = round(0.025 * RESAMPLES)
        return cls(statistics.median(samples), medians[tail], medians[-1 - tail])


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit that the project sets itself, and whether it holds.

    Attributes:
        name: what was measured, with its unit.
        value: the figure.
        op: how it should stand to `limit`.
        limit: the stated limit.
        holds: False only when the figure, with its interval where it has one, excludes the limit.
        low: lower end of the 95 % interval; None for a figure that is exact.
        high: upper end.
    """

    name: str
    value: float
    op: Op
    limit: float
    holds: bool
    low: float | None = None
    high: float | None = None

    @classmethod
    def judge(cls, name: str, value: float | Estimate, op: Op, limit: float) -> Goal:
        """The goal that `value op limit`."""
        if not isinstance(value, Estimate):
            return cls(name, value, op, limit, _holds(value, value, op, limit))
        holds = _holds(value.low, value.high, op, limit)
        return cls(name, value.value, op, limit, holds, value.low, value.high)

    def to_json(self) -> dict[str, Any]:
        """The fixed keys, and `interval` where there is one."""
        fixed: dict[str, Any] = {
            "name": self.name,
            "value": self.value,
            "op": self.op,
            "limit": self.limit,
            "holds": self.holds,
        }
        return fixed if self.low is None else {**fixed, "interval": [self.low, self.high]}


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """What a benchmark found. Rows of one benchmark share their keys, in the order of columns."""

    rows: Sequence[Row]
    goals: Sequence[Goal] = ()
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())

    @property
    def holds(self) -> bool:
        """Whether every goal does."""
        return all(goal.holds for goal in self.goals)

    def to_json(self) -> dict[str, Any]:
        """`{"machine": ..., "rows": [...], "goals": [...]}`."""
        return {
            "machine": dict(self.machine),
            "rows": [dict(row) for row in self.rows],
            "goals": [goal.to_json() for goal in self.goals],
        }

    def show(self, console: Console) -> None:
        """Print the tables."""
        from rich.measure import Measurement
        from rich.table import Table

        described = self.machine
        devices = [described["cpu"], f"{described['cores']} cores", *described.get("gpus", ())]
        console.print(", ".join([*devices, described["os"]]))
        names = list(self.rows[0]) if self.rows else []
        rows = Table(*names)
        for row in self.rows:
            rows.add_row(*map(_text, row.values()))
        wide = console.options.update(max_width=sys.maxsize)
        columns = Table.grid(padding=(0, 2))  # the same with a figure to a line
        for name in names:
            columns.add_row(name, *(_text(row[name]) for row in self.rows))
        width, other = (Measurement.get(console, wide, t).maximum for t in (rows, columns))
        console.print(rows if width <= max(console.width, other) else columns)
        goals = Table("goal", "value", "95 % interval", "limit", "holds")
        for goal in self.goals:
            spread = "" if goal.low is None else f"{_text(goal.low)} .. {_text(goal.high)}"
            limit = f"{goal.op} {_text(goal.limit)}"
            holds = "[green]yes" if goal.holds else "[red]no"
            goals.add_row(goal.name, _text(goal.value), spread, limit, holds)
        if self.goals:
            console.print(goals)


def paired(a: Callable[[], float], b: Callable[[], float], *, rounds: int = MIN_ROUNDS) -> Estimate:
    """The ratio of two measurements, `a() / b()`, taken by turns on one core."""
    return Estimate.of([x / y for x, y in interleaved(a, b, rounds=rounds)])


def interleaved(*measure: Callable[[], float], rounds: int = MIN_ROUNDS) -> list[tuple[float, ...]]:
    """Take each measurement once per round, on one core, after one round that does not count.

    Every second round goes backwards, so that a machine which grows slower, or a measurement that
    disturbs the next, favours none of them.

    Returns:
        One tuple per round, in the order of `measure`.
    """
    taken: list[tuple[float, ...]] = []
    with pinned():
        for number in range(-1, rounds):
            order = range(len(measure))
            figures = {i: measure[i]() for i in (order if number % 2 else reversed(order))}
            if number >= 0:
                taken.append(tuple(figures[i] for i in order))
    return taken


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """Hold this thread, and the children it starts, on one core, where the system allows it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, memory, system, versions; no names, no paths."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    gpus = _gpu_models()
    return {
        "cpu": _cpu_model(),
        **({"gpus": gpus} if gpus else {}),
        "cores": _usable_cores(),
        "memory_gib": round(pages * page_bytes / 2**30, 1),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": dict(_versions()),
    }


def _usable_cores() -> int:
    """Cores that this process may use, where the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _gpu_models() -> list[str]:
    """NVIDIA's GPUs, as their driver calls them."""
    said = [line for path in sorted(_GPUS.glob("*/information")) for line in _lines(path)]
    return [line.partition(":")[2].strip() for line in said if line.startswith("Model:")]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _versions() -> Iterator[tuple[str, str]]:
    for name in ("edl-dist", *LIBRARIES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _holds(low: float, high: float, op: Op, limit: float) -> bool:
    if op == ">=":
        return high >= limit
    if op == "<=":
        return low <= limit
    return low <= limit <= high


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
