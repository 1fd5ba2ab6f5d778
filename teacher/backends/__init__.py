"""`Backend`, the interface of a loaded model, and functions that run it in micro-batches."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import FREE, TensorSpec
from ...runtime.errors import BadAnswer

#: Prefix of the entry of `numerics` that states the micro-batch.
_MICRO_BATCH = "micro-batch="


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The description of a model and of how its backend runs it.

    Attributes:
        platform: framework and format, as "paddle_inference".
        inputs: in the model's order.
        outputs: in the model's order.
        content_id: hash of the model's content; equal within a service, except in an upgrade.
        numerics: every setting that can change bits of the labels, such as "fp32" and "threads=1".
        preprocessing: descriptions of the steps that the sender and the backend apply to the inputs
            before the network, in order.
    """

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    content_id: str
    numerics: tuple[str, ...]
    preprocessing: tuple[str, ...] = ()

    @property
    def numerics_id(self) -> str:
        """The first two entries of `numerics`, for people, and a hash of all entries."""
        return _id_of(self.numerics)

    def rows_per_run(self, micro_batch: int) -> int:
        """Return the samples per run: `micro_batch`, unless the model has a fixed batch size."""
        fixed = {tensor.shape[0] for tensor in self.inputs} - {FREE}
        return min(fixed, default=micro_batch)

    def in_micro_batches(self, size: int) -> ModelSpec:
        """Return the spec with micro-batches of `size` samples, which are part of the numerics."""
        others = (entry for entry in self.numerics if not entry.startswith(_MICRO_BATCH))
        return replace(self, numerics=(*others, f"{_MICRO_BATCH}{size}"))

    def merging(self, max_samples: int) -> ModelSpec:
        """Return the spec for requests that are merged up to `max_samples`.

        The bits of labels then depend on the other requests in a batch, so even equal numerics
        promise no equal bits. The first entry of the numerics, "merged", says so.
        """
        return replace(self, numerics=("merged", *self.numerics, f"up-to={max_samples}"))

    def with_kinds(self, kinds: Mapping[str, str]) -> ModelSpec:
        """Return the spec with these kinds (`OutputKind` by output); other outputs keep theirs."""
        outputs = (
            replace(output, kind=kinds.get(output.name, output.kind)) for output in self.outputs
        )
        return replace(self, outputs=tuple(outputs))


@lru_cache(maxsize=64)
def _id_of(numerics: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\n".join(numerics).encode()).hexdigest()[:12]
    return "-".join([*numerics[:2], digest])


#: Runs one micro-batch.
Run = Callable[[Mapping[str, Array]], dict[str, Array]]
#: Waits for the end of a run; returns its outputs and its seconds on the device.
Finish = Callable[[], tuple[dict[str, Array], float]]
#: Starts a run.
Submit = Callable[[Mapping[str, Array]], Finish]


class Backend(Protocol):
    """A loaded model. Only one thread at a time calls `run`.

    A backend with an asynchronous device also has an attribute `submit` of type `Submit`, which
    only queues a run, so the caller can prepare the next one. Several threads may call `submit`,
    and any thread may wait for the end. `submit` and the wait raise the errors of `run`.
    """

    @property
    def spec(self) -> ModelSpec:
        """The description of the model."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one micro-batch.

        Args:
            inputs: every input of `spec`, already validated, the batch along axis 0.

        Returns:
            Every output of `spec`, and possibly others, in arrays that later runs do not change.

        Raises:
            RequestRefused: the model cannot take these values.
            RetryableError: a resource was missing.
            BadAnswer: the outputs do not fit `spec`.
        """


def async_submit_of(backend: Backend) -> Submit | None:
    """Return the `submit` of a backend with an asynchronous device; None for other backends."""
    return getattr(backend, "submit", None)


def submit_to(backend: Backend, clock: Callable[[], float] = time.perf_counter) -> Submit:
    """Return the backend's `submit`, or a blocking one that is timed by `clock` (seconds)."""
    return async_submit_of(backend) or blocking_submit(backend.run, clock)


def blocking_submit(
    run: Run,
    clock: Callable[[], float] = time.perf_counter,
) -> Submit:
    """Return a `Submit` that blocks until the run has ended, timed by `clock` (seconds)."""

    def submit(inputs: Mapping[str, Array]) -> Finish:
        began_s = clock()
        outputs = run(inputs)
        device_s = clock() - began_s
        return lambda: (outputs, device_s)

    return submit


class WrappedBackend:
    """A backend with functions that change its inputs, its outputs, or both.

    Args:
        backend: the model.
        spec: describes the backend together with the functions.
        before: maps the inputs of a run to inputs of the model.
        after: maps the outputs of the model to outputs of the run.
    """

    def __init__(
        self,
        backend: Backend,
        spec: ModelSpec,
        before: Callable[[Mapping[str, Array]], Mapping[str, Array]] = lambda inputs: inputs,
        after: Callable[[dict[str, Array]], dict[str, Array]] = lambda outputs: outputs,
    ) -> None:
        self._backend, self._before, self._after = backend, before, after
        self.spec = spec
        submit = async_submit_of(backend)
        self.submit = None if submit is None else partial(self._submit, submit)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._after(self._backend.run(self._before(inputs)))

    def _submit(self, submit: Submit, inputs: Mapping[str, Array]) -> Finish:
        finish = submit(self._before(inputs))

        def finish_all() -> tuple[dict[str, Array], float]:
            outputs, device_s = finish()
            return self._after(outputs), device_s

        return finish_all


def run_in_micro_batches(
    run: Run, inputs: Mapping[str, Array], micro_batch: int
) -> dict[str, Array]:
    """Label one batch.

    Args:
        run: the model, as `Backend.run`.
        inputs: arrays of equal length along axis 0, at least 1.
        micro_batch: samples per run; the last run takes the rest.

    Returns:
        Every output, with as many rows as the inputs.

    Raises:
        BadAnswer: an output has another number of rows, or its shape differs between runs.
    """
    outputs, _ = submit_in_micro_batches(blocking_submit(run), inputs, micro_batch)()
    return outputs


def submit_in_micro_batches(
    submit: Submit, inputs: Mapping[str, Array], micro_batch: int
) -> Finish:
    """Start to label one batch; arguments and errors as in `run_in_micro_batches`.

    Returns:
        A function that waits for the labels, and returns them with the seconds of all runs on the
            device.
    """
    rows = len(next(iter(inputs.values())))
    runs: list[tuple[int, Finish]] = []
    for start in range(0, rows, micro_batch):
        size, part = min(micro_batch, rows - start), inputs
        if size < rows:
            part = {name: array[start : start + size] for name, array in inputs.items()}
        runs.append((size, submit(part)))

    def finish() -> tuple[dict[str, Array], float]:
        parts, device_s = list[dict[str, Array]](), 0.0
        for size, finish_run in runs:
            outputs, run_s = finish_run()
            for name, array in outputs.items():
                if array.ndim == 0 or len(array) != size:
                    raise BadAnswer(
                        f"output {name!r} has shape {list(array.shape)} for {size} samples: "
                        "its first dimension must be the batch",
                        name,
                    )
            parts.append(outputs)
            device_s += run_s
        if len(parts) == 1:
            return parts[0], device_s
        joined = {name: _concatenated(name, [part[name] for part in parts]) for name in parts[0]}
        return joined, device_s

    return finish


def _concatenated(name: str, arrays: Sequence[Array]) -> Array:
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise BadAnswer(
            f"output {name!r} has samples of shape {list(shapes[0])} and of {list(shapes[-1])} in "
            "one batch: let the model give all of them one shape",
            name,
        )
    return np.concatenate(arrays)
