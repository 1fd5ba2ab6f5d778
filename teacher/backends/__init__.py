"""The protocol of a backend, which runs a loaded model, and the `ModelSpec` that describes it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from ...proto.arena import Array
from ...proto.datatypes import FREE, TensorSpec

#: How the word of `numerics` begins that says of how many samples a run is.
_MICRO_BATCH = "micro-batch="


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as its backend runs it.

    Attributes:
        platform: framework and format, as "paddle_inference".
        inputs: in the model's order.
        outputs: in the model's order.
        content_id: hash of what the model is: equal within a service.
        numerics: what must be equal for bits to be equal, in words ("fp32", "threads=1", ...).
    """

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    content_id: str
    numerics: tuple[str, ...]

    @property
    def numerics_id(self) -> str:
        """The first words of `numerics`, readable, and a hash of them all."""
        return _id_of(self.numerics)

    def rows_per_run(self, micro_batch: int) -> int:
        """Samples of one run: `micro_batch`, unless the model was exported for a fixed number."""
        fixed = {tensor.shape[0] for tensor in self.inputs} - {FREE}
        return min(fixed, default=micro_batch)

    def in_micro_batches(self, size: int) -> ModelSpec:
        """The same model run in micro-batches of `size` samples: other numerics."""
        others = (word for word in self.numerics if not word.startswith(_MICRO_BATCH))
        return replace(self, numerics=(*others, f"{_MICRO_BATCH}{size}"))

    def merging(self, most: int) -> ModelSpec:
        """The same model where requests go with others', up to `most` samples: bits depend on them.

        So the first word says that even equal numerics promise no equal bits.
        """
        return replace(self, numerics=("merged", *self.numerics, f"up-to={most}"))

    def with_kinds(self, kinds: Mapping[str, str]) -> ModelSpec:
        """The same model with these kinds of its outputs, by name."""
        outputs = (replace(one, kind=kinds.get(one.name, one.kind)) for one in self.outputs)
        return replace(self, outputs=tuple(outputs))


@lru_cache(maxsize=64)
def _id_of(numerics: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\n".join(numerics).encode()).hexdigest()[:12]
    return "-".join([*numerics[:2], digest])


#: Waits for the end of a run; returns its outputs and how many seconds the device took for it.
Finish = Callable[[], tuple[dict[str, Array], float]]
#: Begins a run.
Submit = Callable[[Mapping[str, Array]], Finish]


class Backend(Protocol):
    """A model that is loaded; one thread uses it.

    A backend whose device works by itself also has an attribute `submit` of type `Submit`, which
    only queues a run: the caller prepares the next run meanwhile. Another thread may wait for the
    end. `submit` raises what `run` raises, and so does what it returns.
    """

    @property
    def spec(self) -> ModelSpec:
        """What the model takes, gives and is."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one micro-batch.

        Args:
            inputs: every input of `spec`, validated against it, the batch along axis 0.

        Returns:
            Every output of `spec`, in arrays that no later run touches; there may be others.

        Raises:
            RequestRefused: the model cannot take these values.
            RetryableError: it failed for want of a resource.
        """


def queue_of(backend: Backend) -> Submit | None:
    """The backend's `submit`; None for a backend that can only run."""
    return getattr(backend, "submit", None)


def submit_to(backend: Backend, clock: Callable[[], float] = time.perf_counter) -> Submit:
    """The backend's `submit`, or one that runs at once and takes the time by `clock` (seconds)."""
    return queue_of(backend) or at_once(backend.run, clock)


def at_once(
    run: Callable[[Mapping[str, Array]], dict[str, Array]],
    clock: Callable[[], float] = time.perf_counter,
) -> Submit:
    """A `Submit` that runs before it returns."""

    def submit(inputs: Mapping[str, Array]) -> Finish:
        began_s = clock()
        outputs = run(inputs)
        device_s = clock() - began_s
        return lambda: (outputs, device_s)

    return submit
