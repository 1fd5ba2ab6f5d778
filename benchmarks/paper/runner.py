"""Finding and running experiments, simulated or measured."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

from ...runtime.errors import UsageError
from ..report import BenchmarkReport
from .tables import ReproductionReport, compare


def run(
    name: str, *, simulate: bool, measure: bool, quick: bool, device: str | None = None
) -> BenchmarkReport:
    """Run the experiment of the module `name`.

    Args:
        name: name of the module, as "table1".
        simulate: run it with the paper's devices, in virtual time.
        measure: run it on this machine. Exactly one of `simulate` and `measure` must be true.
        quick: less work, coarser figures.
        device: "cuda" or "cpu", for a measured teacher; None: the experiment's default.

    Raises:
        UsageError: both or none of `simulate` and `measure` are true, or the experiment cannot be
            measured, or not with `device`.
    """
    if simulate == measure:
        raise UsageError(
            f"paper.{name} is run with --simulate (the paper's devices, in virtual time) or with"
            " --measure (this machine): give one of the two"
        )
    module = importlib.import_module(f".{name}", __package__)
    if simulate:
        if device is not None:
            raise UsageError("--simulate has the paper's devices: leave --device out")
        return run_simulation(module, quick=quick)
    if not hasattr(module, "measure"):
        raise UsageError(f"paper.{name} needs devices of the paper: run it with --simulate")
    options = {} if device is None else {"device": device}
    if options.keys() - inspect.signature(module.measure).parameters.keys():
        raise UsageError(f"paper.{name} has no --device")
    found: BenchmarkReport = module.measure(quick=quick, **options)
    return found


def experiments() -> list[str]:
    """Return the names of all experiments: the modules of this folder that define `simulate`."""
    folder = Path(__file__).parent
    return sorted(
        path.stem for path in folder.glob("*.py") if "\ndef simulate(" in path.read_text("utf-8")
    )


def run_simulation(module: ModuleType, *, quick: bool) -> ReproductionReport:
    """Simulate the experiment of a module and compare it with its paper."""
    return compare(module.EXPERIMENT, module.simulate(quick=quick))
