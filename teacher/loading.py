"""From a model's name to a model that may serve: opened, warm, measured and tested."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from .backends import Backend
from .backends.open import open_backend
from .backends.paced import Paced
from .config import PredictorConfig
from .microbatch import fastest_micro_batch, warm_up
from .model import ModelSpec
from .self_test import Canary, self_test


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that may serve.

    Attributes:
        backend: the model.
        micro_batch: samples of one run.
        t_t_s: device time in seconds per sample, as measured.
        spec: of the model as it serves, with the kinds of its outputs.
        arrive: told when each job came, before it is run: an emulated device goes by that.
    """

    backend: Backend
    micro_batch: int
    t_t_s: float
    spec: ModelSpec
    arrive: Callable[[float], None] = lambda at_s: None


def prepare_process(config: PredictorConfig) -> None:
    """Make this process one that runs a model; before a framework is imported."""
    if config.cores:
        os.sched_setaffinity(0, config.cores)  # before a framework starts threads of its own
    # Last, so that a folder of the user's cannot hide an installed package.
    sys.path.append(os.getcwd())


def load(config: PredictorConfig, on_progress: Callable[[str], None]) -> Loaded:
    """Open the model, and do all that comes before serving.

    Args:
        config: which, and how it is run.
        on_progress: told in words what is being done.

    Raises:
        EdlError: the model cannot be opened, does not run, or fails its self-test.
    """
    canary = Canary.load(Path(config.canary)) if config.canary else None
    backend = open_model(config, on_progress)
    on_progress("warming up")
    rows = backend.spec.rows_per_run(config.micro_batch or _measured(backend, on_progress))
    t_t_s = warm_up(backend, rows)
    _check_outputs(config.output_kinds, backend.spec)
    kinds: dict[str, str] = {}
    if config.self_test:
        kinds |= self_test(backend, canary, rows, on_progress)
    spec = backend.spec.in_micro_batches(rows).with_kinds({**kinds, **dict(config.output_kinds)})
    if isinstance(backend, Paced):
        return Loaded(backend, rows, t_t_s, spec, backend.arrive)
    return Loaded(backend, rows, t_t_s, spec)


def _check_outputs(kinds: Sequence[tuple[str, str]], spec: ModelSpec) -> None:
    """Raise ModelError where a kind is stated for an output that the model does not have."""
    known = [tensor.name for tensor in spec.outputs]
    for name, kind in kinds:
        if name not in known:
            raise ModelError(f"--output-kind {name}={kind}: the model's outputs are {known}")


def open_model(config: PredictorConfig, on_progress: Callable[[str], None]) -> Backend:
    """Only open it; arguments and errors as of `load`."""
    on_progress(f"loading {config.model}")
    return open_backend(
        config.model,
        backend=config.backend,
        threads=config.threads,
        device=config.device,
        precision=config.precision,
        inputs=config.inputs,
        outputs=config.outputs,
        preprocess=config.preprocess,
        rate=config.rate,
        tell=on_progress,
    )


def _measured(backend: Backend, on_progress: Callable[[str], None]) -> int:
    rows, per_sample_s = fastest_micro_batch(backend)
    told = ", ".join(f"{size}: {cost * 1000:.3g}" for size, cost in per_sample_s.items())
    on_progress(f"micro-batch {rows}, by ms/sample of each size ({told})")
    return rows
