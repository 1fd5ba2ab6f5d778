"""The report of a benchmark: rows of figures, goals with limits, a description of the machine.

A benchmark is a module of this folder with a function `run(quick: bool) -> BenchmarkReport`. The
first line of the module's docstring is its text in `edl bench --help`. Benchmarks make their goals
with `Goal.judge` and `Goal.judge_speed`, and most take their figures with `interleaved`.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..mesh.cores import available_cores, on_cores

if TYPE_CHECKING:
    from rich.console import Console

Op = Literal[">=", "<=", "=="]
Row = Mapping[str, str | float | int | bool]

#: Least number of samples of an interval: with fewer, the interval is too wide for a goal to fail.
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
#: A program whose CPU time shows how fast a machine is: from one machine to another, it changes by
#: about the same factor as the CPU time of many small Python calls. A loop of additions would not
#: show the cost of system calls and of memory.
SPEED_PROGRAM = "import asyncio, numpy"
#: CPU seconds of `SPEED_PROGRAM` on the reference machine.
REFERENCE_SPEED_S = 0.15


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over rounds, and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Estimate:
        """Estimate from one figure per round, by bootstrap: no noise distribution is assumed.

        The resampling is seeded, so that equal figures give equal intervals.

        Raises:
            ValueError: there are fewer than `MIN_ROUNDS` samples.
        """
        if len(samples) < MIN_ROUNDS:
            raise ValueError(f"an interval needs {MIN_ROUNDS} rounds, not {len(samples)}")
        rng = random.Random(0)
        medians = sorted(
            statistics.median(rng.choices(samples, k=len(samples))) for _ in range(RESAMPLES)
        )
        tail = round(0.025 * RESAMPLES)
        return cls(statistics.median(samples), medians[tail], medians[-1 - tail])

    @classmethod
    def of_ratio(cls, these: Sequence[float], those: Sequence[float]) -> Estimate:
        """Estimate the ratio of `these` to `those` from the ratio in each round; see `of`."""
        return cls.of([this / that for this, that in zip(these, those, strict=True)])

    def columns(self, name: str) -> dict[str, float]:
        """Return the columns `name`, "low" and "high" of a row."""
        return {name: self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for a figure, and whether it holds.

    Attributes:
        name: what was measured, with its unit.
        value: the figure.
        op: the goal is `value op limit`.
        limit: the limit on this machine.
        holds: False only if the figure, or its whole interval if it has one, misses the limit.
        low: lower end of the 95 % interval; None for an exact figure.
        high: upper end of the interval.
        reference_limit: the limit on the reference machine; None: it is the same on all machines.
    """

    name: str
    value: float
    op: Op
    limit: float
    holds: bool
    low: float | None = None
    high: float | None = None
    reference_limit: float | None = None

    @classmethod
    def judge(cls, name: str, value: float | Estimate, op: Op, limit: float) -> Goal:
        """Make the goal `value op limit`."""
        if not isinstance(value, Estimate):
            return cls(name, value, op, limit, _holds(value, value, op, limit))
        holds = _holds(value.low, value.high, op, limit)
        return cls(name, value.value, op, limit, holds, value.low, value.high)

    @classmethod
    def judge_speed(cls, name: str, value: float | Estimate, op: Op, limit: float) -> Goal:
        """Make a goal for a time ("<=") or a rate (">=") that the speed of one core determines.

        `limit` applies to the reference machine. On a machine that is half as fast, the limit of a
        time is twice as high, and the limit of a rate half as high. Faster machines have the same
        limit as the reference.
        """
        factor = max(1.0, slowness())
        goal = cls.judge(name, value, op, limit * factor if op == "<=" else limit / factor)
        return replace(goal, reference_limit=limit)

    def to_json(self) -> dict[str, Any]:
        """Return the goal for JSON, without keys for absent values.

        Infinity and NaN, which JSON does not have, become None.
        """
        written: dict[str, Any] = {
            "name": self.name,
            "value": _finite(self.value),
            "op": self.op,
            "limit": self.limit,
            "holds": self.holds,
        }
        if self.low is not None:
            written["interval"] = [_finite(self.low), _finite(self.high)]
        if self.reference_limit is not None:
            written["reference_limit"] = self.reference_limit
        return written


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """The result of a benchmark. All rows have the same keys, in the order of the columns."""

    rows: Sequence[Row]
    goals: Sequence[Goal] = ()
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())

    @property
    def holds(self) -> bool:
        """Whether all goals hold."""
        return all(goal.holds for goal in self.goals)

    def to_json(self) -> dict[str, Any]:
        """Return `{"machine": ..., "rows": [...], "goals": [...]}`; see also `Goal.to_json`."""
        return {
            "machine": dict(self.machine),
            "rows": [{name: _finite(value) for name, value in row.items()} for row in self.rows],
            "goals": [goal.to_json() for goal in self.goals],
        }

    def show(self, console: Console) -> None:
        """Print the machine, the rows and the goals."""
        from rich.measure import Measurement
        from rich.table import Table

        machine = self.machine
        devices = [machine["cpu"], f"{machine['cores']} cores", *machine.get("gpus", ())]
        console.print(", ".join([*devices, machine["os"]]))
        if (slowness := machine.get("slowness", 1.0)) > 1.0:
            console.print(f"this machine needs {slowness:g} times the reference's CPU time")
        names = list(self.rows[0]) if self.rows else []
        rows = Table(*names)
        for row in self.rows:
            rows.add_row(*map(_text, row.values()))
        wide = console.options.update(max_width=sys.maxsize)
        columns = Table.grid(padding=(0, 2))  # the transposed table, for narrow terminals
        for name in names:
            columns.add_row(name, *(_text(row[name]) for row in self.rows))
        width, other = (Measurement.get(console, wide, t).maximum for t in (rows, columns))
        console.print(rows if width <= max(console.width, other) else columns)
        goals = Table("goal", "value", "95 % interval", "limit", "holds")
        for goal in self.goals:
            interval = "" if goal.low is None else f"{_text(goal.low)} .. {_text(goal.high)}"
            limit = f"{goal.op} {_text(goal.limit)}"
            if goal.reference_limit not in (None, goal.limit):
                limit += f" (reference: {_text(goal.reference_limit)})"
            holds = "[green]yes" if goal.holds else "[red]no"
            goals.add_row(goal.name, _text(goal.value), interval, limit, holds)
        if self.goals:
            console.print(goals)


def cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Return the mean CPU seconds of this process for a call of `work`."""
    began_s = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - began_s) / repeats


def quantile(samples: Sequence[float], part: float) -> float:
    """Return the quantile `part`, from 0 to 1, by nearest rank: always one of the samples.

    Infinite if there are no samples.
    """
    ranked = sorted(samples)
    return ranked[max(math.ceil(part * len(ranked)), 1) - 1] if ranked else math.inf


def interleaved(*measure: Callable[[], float], rounds: int = MIN_ROUNDS) -> list[list[float]]:
    """Take each measurement once per round, after a discarded warm-up round.

    This thread, and children that it starts meanwhile, run on one core.

    Every second round runs in reverse order, so that no measurement has an advantage if the machine
    slows down, or if a measurement disturbs the next one.

    Returns:
        For each of `measure`, in their order, the figures of all rounds.
    """
    figures: list[list[float]] = [[] for _ in measure]
    with on_one_core():
        for number in range(-1, rounds):
            order = range(len(measure))
            for i in order if number % 2 else reversed(order):
                figure = measure[i]()
                if number >= 0:
                    figures[i].append(figure)
    return figures


def on_one_core() -> AbstractContextManager[None]:
    """Pin this thread, and the children it starts, to one core, if the system supports it."""
    return on_cores([max(available_cores())])


def machine() -> dict[str, Any]:
    """Describe this machine, without host and user names: processor, memory, system, versions.

    `slowness` is the CPU time of `SPEED_PROGRAM`, divided by its CPU time on the reference machine.
    """
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    gpus = _gpu_models()
    return {
        "cpu": _cpu_model(),
        **({"gpus": gpus} if gpus else {}),
        "cores": len(available_cores()),
        "slowness": round(slowness(), 1),
        "memory_gib": round(pages * page_bytes / 2**30, 1),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": dict(_versions()),
    }


@cache
def slowness() -> float:
    """Return the CPU time of `SPEED_PROGRAM` here / on the reference machine: above 1 is slower.

    The first call measures it, so call it after the benchmark has taken its figures.
    """
    return statistics.median(speed_program_s() for _ in range(3)) / REFERENCE_SPEED_S


def speed_program_s() -> float:
    """Return the CPU time of one run of `SPEED_PROGRAM`.

    Other processes of this machine do not change it much. But a virtual machine takes more CPU
    time for everything while others on its host are busy.
    """
    process = subprocess.Popen([sys.executable, "-P", "-c", SPEED_PROGRAM])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def _cpu_model() -> str:
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _gpu_models() -> list[str]:
    """Return the models of NVIDIA GPUs, as named by the driver."""
    models: list[str] = []
    for path in sorted(_GPUS.glob("*/information")):
        with contextlib.suppress(OSError):
            models += re.findall(r"^Model:(.*)", path.read_text(), re.MULTILINE)
    return [model.strip() for model in models]


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


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
