"""CPU seconds of imports: what `DistilReader` adds to numpy, and what whole processes need."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..runtime.supervise import Command, start
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved

TIMEOUT_S = 60.0
#: Libraries that a user who only reads labelled batches must not have to import.
FORBIDDEN = frozenset({"paddle", "torch", "grpc", "redis", "prometheus_client"})

PROGRAM = """
import importlib, json, sys, time
sys.dont_write_bytecode, sys.pycache_prefix = False, sys.argv[1]
began = time.process_time()
for name in sys.argv[2:]:
    module, _, attribute = name.partition(":")
    loaded = importlib.import_module(module)
    attribute and getattr(loaded, attribute)
cpu_s = {"imports": time.process_time() - began, "process": time.process_time()}
print(json.dumps({"cpu_s": cpu_s, "modules": [name.partition(".")[0] for name in sys.modules]}))
"""


@dataclass(frozen=True, slots=True)
class ImportSubject:
    """Names that are imported in a fresh interpreter.

    Attributes:
        names: modules, or `module:attribute` to load an attribute that the module imports lazily.
        limit_s: limit of the CPU seconds of the whole process; None: no goal.
    """

    names: tuple[str, ...]
    limit_s: float | None = None


NUMPY, READER = "numpy", "edl.distill_reader"
#: Limit of the CPU seconds of importing the reader beyond those of numpy.
READER_LIMIT_S = 0.1
SUBJECTS: Mapping[str, ImportSubject] = {
    NUMPY: ImportSubject(("numpy",)),
    READER: ImportSubject((f"{READER}:DistilReader",)),
    "libraries of a process": ImportSubject(("numpy", "grpc", "typer")),
    "teacher": ImportSubject(
        ("edl.teacher.cli", "edl.teacher.serving", "edl.teacher.servers.http_server"), 0.3
    ),
    "reader's engine": ImportSubject(("edl.distill_reader.engine.engine",), 0.3),
    "predictor": ImportSubject(("edl.teacher.predictor",), 0.2),
}


@dataclass(frozen=True, slots=True)
class ImportCost:
    """The cost of imports.

    Attributes:
        cpu_s: CPU seconds of the imports.
        process_s: CPU seconds of the process, including the start of Python.
        heavy: modules of FORBIDDEN that were loaded.
    """

    cpu_s: float
    process_s: float
    heavy: frozenset[str]


def run(quick: bool) -> BenchmarkReport:
    """Import each subject in fresh interpreters, interleaved.

    Importing uses one core, so CPU seconds measure its cost, and other programs disturb them less
    than wall time. Sources are compiled in the warm-up round, whatever the environment says about
    bytecode: users import compiled files, too.
    """
    del quick  # 15 rounds take little time
    with tempfile.TemporaryDirectory() as compiled:
        return _run(Path(compiled))


def _run(compiled: Path) -> BenchmarkReport:
    measured: dict[str, list[ImportCost]] = {name: [] for name in SUBJECTS}

    def process_s(name: str) -> float:
        measured[name].append(measure(SUBJECTS[name].names, compiled))
        return measured[name][-1].process_s

    interleaved(*(partial(process_s, name) for name in SUBJECTS))
    counted = {name: costs[1:] for name, costs in measured.items()}  # without the warm-up round
    pairs = zip(counted[NUMPY], counted[READER], strict=True)
    beyond = Estimate.of([reader.cpu_s - numpy.cpu_s for numpy, reader in pairs])
    heavy = counted[READER][-1].heavy
    rows: list[Row] = []
    goals = [
        Goal.judge_speed(f"{READER}: CPU seconds beyond {NUMPY}", beyond, "<=", READER_LIMIT_S),
        Goal.judge(f"{READER}: heavy modules loaded", len(heavy), "==", 0),
    ]
    for name, costs in counted.items():
        figure = Estimate.of([cost.process_s for cost in costs])
        rows.append({"process": name, **figure.columns("cpu_s")})
        if (limit_s := SUBJECTS[name].limit_s) is not None:
            goals.append(Goal.judge_speed(f"{name}: CPU seconds", figure, "<=", limit_s))
    return BenchmarkReport(rows, goals)


def measure(names: tuple[str, ...], compiled: Path) -> ImportCost:
    """Import `names` in a fresh interpreter, with its bytecode cache in the folder `compiled`.

    Raises:
        ProcessFailed: an import failed.
    """
    command = (sys.executable, "-P", "-c", PROGRAM, str(compiled), *names)
    process = start(Command(f"import {' '.join(names)}", command))
    try:
        output = json.loads(process.expect(r"^\{.*\}$", TIMEOUT_S)[0])
        process.wait(TIMEOUT_S)
    finally:
        process.stop()
    cpu_s, heavy = output["cpu_s"], FORBIDDEN.intersection(output["modules"])
    return ImportCost(cpu_s["imports"], cpu_s["process"], heavy)
