"""What it costs to import `DistilReader`, beyond numpy: CPU seconds, and heavy modules."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..supervise import Command, start
from .report import Estimate, Goal, Report, Row, interleaved

SUBJECT = "edl.distill_reader"
BASELINE = "numpy"
#: What is loaded when it is first asked for, and is asked for at once.
NAMES = {SUBJECT: ("DistilReader",)}
LIMIT_S = 0.1
#: What a user who only wants to read labelled batches must not pay for.
FORBIDDEN = frozenset({"paddle", "torch", "grpc", "redis", "prometheus_client"})
TIMEOUT_S = 60.0

PROGRAM = """
import importlib, json, sys, time
sys.dont_write_bytecode, sys.pycache_prefix = False, sys.argv[1]
began, began_cpu = time.perf_counter(), time.process_time()
module = importlib.import_module(sys.argv[2])
[getattr(module, name) for name in sys.argv[3:]]
figures = [time.perf_counter() - began, time.process_time() - began_cpu]
print(json.dumps({"figures": figures, "modules": [name.partition(".")[0] for name in sys.modules]}))
"""


@dataclass(frozen=True, slots=True)
class Import:
    """What one import cost, in seconds, and the heavy modules that came with it."""

    wall_s: float
    cpu_s: float
    heavy: frozenset[str]


def run(quick: bool) -> Report:
    """Fresh interpreters by turns, one importing numpy and one the reader.

    Importing is work of one core, so that CPU seconds say what it costs, and other programs on the
    machine do not disturb them: they are the goal, wall time stands beside. Sources are compiled
    once, in the rounds that do not count, whatever the environment says of bytecode: so it is for
    users.
    """
    del quick  # fifteen rounds of two interpreters are quick
    with tempfile.TemporaryDirectory() as compiled:
        return _run(Path(compiled))


def _run(compiled: Path) -> Report:
    taken: dict[str, list[Import]] = {BASELINE: [], SUBJECT: []}

    def cpu_s(module: str) -> float:
        taken[module].append(measure(module, compiled))
        return taken[module][-1].cpu_s

    rounds = interleaved(lambda: cpu_s(BASELINE), lambda: cpu_s(SUBJECT))
    beyond = Estimate.of([own - base for base, own in rounds])
    rows: list[Row] = []
    for module, costs in taken.items():
        figure = Estimate.of([cost.cpu_s for cost in costs[1:]])  # the first does not count
        rows.append(
            {
                "import": module,
                "cpu_s": figure.value,
                "low": figure.low,
                "high": figure.high,
                "wall_s": statistics.median(cost.wall_s for cost in costs[1:]),
                "heavy_modules": " ".join(sorted(costs[-1].heavy)) or "none",
            }
        )
    heavy = frozenset[str]().union(*(cost.heavy for cost in taken[SUBJECT]))
    goals = [
        Goal.judge(f"CPU seconds beyond {BASELINE}", beyond, "<=", LIMIT_S),
        Goal.judge("heavy modules loaded", len(heavy), "==", 0),
    ]
    return Report(rows, goals)


def measure(module: str, compiled: Path) -> Import:
    """Import `module` in a fresh interpreter that keeps what it has compiled in this folder.

    Raises:
        ProcessFailed: the import failed.
    """
    process = start(
        Command(
            f"import {module}",
            (sys.executable, "-P", "-c", PROGRAM, str(compiled), module, *NAMES.get(module, ())),
        )
    )
    try:
        found = json.loads(process.expect(r"^\{.*\}$", TIMEOUT_S)[0])
        process.wait(TIMEOUT_S)
    finally:
        process.stop()
    wall_s, cpu_s = found["figures"]
    return Import(wall_s, cpu_s, FORBIDDEN.intersection(found["modules"]))
