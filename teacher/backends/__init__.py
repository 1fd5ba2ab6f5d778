"""One protocol, a small file for each framework: how a model is opened and run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from ...proto.arena import Array
from ..model import ModelSpec

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
