"""Devices that a model runs on, and the precision it runs in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import ModelError
from ...proto.arena import Array
from ..probes import probe_batch
from . import Backend

#: Samples that are compared.
_ROWS = 8


def compared(backend: Backend, exact: Backend, precision: str) -> str:
    """One line on how far the outputs of `backend` are from those of `exact`."""
    rows = backend.spec.rows_per_run(_ROWS)
    batch = probe_batch(backend.spec.inputs, rows, 0)
    lower, reference = backend.run(batch), exact.run(batch)
    each = (_difference(name, lower, reference) for name in reference)
    return f"{precision} against fp32 on {rows} example samples: {'; '.join(each)}"


def _difference(name: str, lower: Mapping[str, Array], reference: Mapping[str, Array]) -> str:
    exact = reference[name].astype(np.float64)
    apart = float(np.abs(lower[name].astype(np.float64) - exact).max())
    share = apart / max(float(np.abs(exact).max()), np.finfo(np.float64).tiny)
    said = f"{name} differs by at most {apart:.2g} ({share:.2%} of its largest value)"
    if exact.ndim < 2:
        return said
    same = int((lower[name].argmax(axis=-1) == exact.argmax(axis=-1)).sum())
    return f"{said}, largest entry the same in {same} of {exact[..., 0].size}"


def gpu_of(device: str) -> int | None:
    """The number of the GPU that `device` names, None for the CPU.

    Raises:
        ModelError: it is neither "cpu" nor "gpu:N".
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return None
    if kind != "gpu" or not (number or "0").isdigit():
        raise ModelError(f"unknown device {device!r}: expected cpu or gpu:N")
    return int(number or 0)


def check_gpu(device: str, index: int, count: int) -> None:
    """Raise ModelError where there are not so many GPUs."""
    if index >= count:
        raise ModelError(f"device {device} asked for, but there are {count} GPUs")
