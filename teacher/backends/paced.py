"""Backend `paced`: an emulated accelerator. Real answers, in the time that a stated rate needs.

What a mesh does around a device can be tried without one: the answers are those of a cheap real
model, and each run takes `rows / rate` seconds, neither more nor less. Whatever it says of itself
says that it is emulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ...errors import ModelError, UsageError
from ...proto.arena import Array
from . import Backend, ModelSpec
from .tensor_specs import example_batch

#: How `--backend` calls it, and the word that it is labelled with.
NAME: Final = "paced"
LABEL: Final = "emulated"
#: A sleeper wakes late; the rest of the way to the moment is spent awake.
_AWAKE_S = 0.0005
_TRIAL_ROWS = 8
_TRIALS = 5


class Schedule:
    """When a device that works at a stated rate is done: pure arithmetic, no clock.

    A run starts when it comes or when the one before it ends, whichever is later. So work that
    waits loses nothing between two runs, and time in which there was no work is not made up.

    Args:
        rate: samples per second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at_s = 0.0

    def end_s(self, now_s: float, rows: int) -> float:
        """When a run of `rows` samples that comes at `now_s` ends."""
        self._free_at_s = max(now_s, self._free_at_s) + rows / self._rate
        return self._free_at_s

    def late_s(self, now_s: float) -> None:
        """The last run ended only at `now_s`: the next does not start before."""
        self._free_at_s = max(now_s, self._free_at_s)


class PacedBackend:
    """Another backend, at the speed of a device that is not there.

    Args:
        backend: gives the answers; faster than `rate`.
        rate: samples per second of the device.
        clock: seconds, as all processes of a machine count them.
        sleep: for seconds.

    Raises:
        ModelError: `backend` is slower than the device is to be.
    """

    def __init__(
        self,
        backend: Backend,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._sleep = sleep
        self._schedule = Schedule(rate)
        self._came_s = math.inf
        _check_speed(backend, rate, clock)
        self.spec = labelled(backend.spec)

    def arrive(self, at_s: float) -> None:
        """What is run next was handed to the device at `at_s`, when it may have been at work.

        What a real device does while it works, such as taking the next batch in and giving the last
        one out, takes no time of the emulated one.
        """
        self._came_s = at_s

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = len(next(iter(inputs.values())))
        end_s = self._schedule.end_s(min(self._came_s, self._clock()), rows)
        outputs = self._backend.run(inputs)
        self._wait_until(end_s)
        return outputs

    def _wait_until(self, end_s: float) -> None:
        now_s = self._clock()
        if now_s > end_s:
            self._schedule.late_s(now_s)
        if end_s - now_s > _AWAKE_S:
            self._sleep(end_s - now_s - _AWAKE_S)
        while self._clock() < end_s:
            pass


def labelled(spec: ModelSpec) -> ModelSpec:
    """`spec`, with the label wherever it is read: its answers are real, its speed is not."""
    return replace(
        spec, platform=f"{LABEL}_{spec.platform}", numerics=(f"{LABEL}-{NAME}", *spec.numerics)
    )


def check_rate(backend: str, rate: float | None) -> None:
    """Raise UsageError unless a rate is stated for an emulated device, and for no other."""
    if backend == NAME and rate is None:
        raise UsageError(f"--backend {NAME} emulates a device: say by --rate how fast it is")
    if backend != NAME and rate is not None:
        raise UsageError(f"--rate is that of an emulated device: name --backend {NAME} with it")
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"a device labels more than 0 samples per second, not {rate:g}")


def device_label(rate: float) -> str:
    """What stands where others name their device."""
    return f"{LABEL} ({rate:g} samples/s)"


def _check_speed(backend: Backend, rate: float, clock: Callable[[], float]) -> None:
    rows = backend.spec.rows_per_run(_TRIAL_ROWS)
    batch = example_batch(backend.spec.inputs, rows)
    taken_s = []
    for _ in range(_TRIALS):
        began = clock()
        backend.run(batch)
        taken_s.append(clock() - began)
    if (best_s := min(taken_s)) > rows / rate:
        raise ModelError(
            f"the model takes {best_s * 1000:.3g} ms for {rows} samples, and a device of {rate:g} "
            f"samples/s takes {rows / rate * 1000:.3g} ms: name a cheaper model or a lower rate"
        )
