"""Backend `paced`: an emulated accelerator with a stated rate.

It lets a mesh be tested without the device. The answers come from a cheap real model, and each run
takes `rows / rate` seconds, or longer if the model is slower. The platform, the numerics and the
name of the device say that it is emulated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ...proto.arena import Array
from ...runtime.errors import ModelError, UsageError
from . import Backend, ModelSpec
from .tensor_specs import example_batch

#: Name in `--backend`.
NAME: Final = "paced"
#: Mark of an emulated device in platforms, numerics and names of devices.
EMULATED: Final = "emulated"
#: The last part of a run, in seconds. It is spent in a busy loop, because `sleep` ends late.
_BUSY_WAIT_S = 0.0005
#: Samples and number of the runs that check whether a model is fast enough.
_TRIAL_ROWS = 8
_TRIALS = 5


class Schedule:
    """Computes when a device with a stated rate finishes its runs; needs no clock.

    A run starts when it arrives or when the previous one ends, whichever is later. So a run that
    waited starts without a pause, and a device that idled is not faster afterwards.

    Args:
        rate: samples per second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at_s = 0.0

    def schedule(self, now_s: float, rows: int) -> float:
        """Schedule a run of `rows` samples that arrives at `now_s`; return the time of its end."""
        self._free_at_s = max(now_s, self._free_at_s) + rows / self._rate
        return self._free_at_s

    def record_late_end(self, now_s: float) -> None:
        """Record that the last run ended late, at `now_s`; the next one starts no earlier."""
        self._free_at_s = max(now_s, self._free_at_s)


class PacedBackend:
    """Slows another backend down to the rate of an emulated device.

    Args:
        backend: computes the answers, faster than `rate`.
        rate: samples per second of the device.
        clock: returns seconds. All processes of this machine must share this clock, because another
            process reads it for `arrive`.
        sleep: sleeps for a number of seconds.

    Raises:
        ModelError: `backend` is slower than the emulated device.
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
        self._arrived_s = math.inf
        _check_speed(backend, rate, clock)
        self.spec = mark_emulated(backend.spec)

    def arrive(self, at_s: float) -> None:
        """Record when the next job was submitted, possibly while the device was busy.

        Call it before each job: the time holds for all runs until the next call. Runs are scheduled
        from this time, though the batch is copied later: real devices copy it during earlier runs.

        Args:
            at_s: time of `clock`, in seconds.
        """
        self._arrived_s = at_s

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = len(next(iter(inputs.values())))
        end_s = self._schedule.schedule(min(self._arrived_s, self._clock()), rows)
        outputs = self._backend.run(inputs)
        self._wait_until(end_s)
        return outputs

    def _wait_until(self, end_s: float) -> None:
        now_s = self._clock()
        if now_s > end_s:
            self._schedule.record_late_end(now_s)
        if end_s - now_s > _BUSY_WAIT_S:
            self._sleep(end_s - now_s - _BUSY_WAIT_S)
        while self._clock() < end_s:
            pass


def mark_emulated(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with `EMULATED` in its platform and numerics; its content stays the same."""
    return replace(
        spec,
        platform=f"{EMULATED}_{spec.platform}",
        numerics=(f"{EMULATED}-{NAME}", *spec.numerics),
    )


def check_rate(backend: str, rate: float | None) -> None:
    """Raise UsageError if a rate is invalid, missing for paced, or stated for other backends."""
    if backend == NAME and rate is None:
        raise UsageError(
            f"--backend {NAME} emulates a device: state its samples per second, as {NAME},rate=1600"
        )
    if backend != NAME and rate is not None:
        raise UsageError(f"rate= is for an emulated device: say --backend {NAME},rate={rate:g}")
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"a device labels more than 0 samples per second, not {rate:g}")


def device_label(rate: float) -> str:
    """Return the name of an emulated device."""
    return f"{EMULATED} ({rate:g} samples/s)"


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
