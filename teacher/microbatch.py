"""Runs a batch through a model in micro-batches and joins what comes out.

A batch on the wire and a batch in the model are two sizes: Paddle on a CPU is a quarter faster at 4
to 8 samples than at 32. The served teacher and an in-process one both go through this module, which
is why their answers agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..errors import BadAnswer
from ..proto.arena import Array
from .backends import Finish, Submit, at_once

Run = Callable[[Mapping[str, Array]], dict[str, Array]]


def run_in_micro_batches(
    run: Run, inputs: Mapping[str, Array], micro_batch: int
) -> dict[str, Array]:
    """Label one batch.

    Args:
        run: the model, as `Backend.run`.
        inputs: arrays of equal length along axis 0, at least 1.
        micro_batch: samples of one run; the last run of a batch takes what is left.

    Returns:
        Every output, as long along axis 0 as the inputs.

    Raises:
        BadAnswer: an output has another number of rows than the inputs, or another shape in one run
            than in another.
    """
    outputs, _ = submit_in_micro_batches(at_once(run), inputs, micro_batch)()
    return outputs


def submit_in_micro_batches(
    submit: Submit, inputs: Mapping[str, Array], micro_batch: int
) -> Finish:
    """Begin to label one batch; arguments and results as of `run_in_micro_batches`.

    Returns:
        What waits for the labels; the seconds are those of all runs together.
    """
    rows = len(next(iter(inputs.values())))
    sizes = [min(micro_batch, rows - start) for start in range(0, rows, micro_batch)]
    runs = [
        submit({name: array[start : start + size] for name, array in inputs.items()})
        for start, size in zip(range(0, rows, micro_batch), sizes, strict=True)
    ]

    def finish() -> tuple[dict[str, Array], float]:
        ended = [run() for run in runs]
        for (outputs, _), size in zip(ended, sizes, strict=True):
            _check_rows(outputs, size)
        return _joined([outputs for outputs, _ in ended]), sum(device_s for _, device_s in ended)

    return finish


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    if len(parts) == 1:
        return dict(parts[0])
    return {name: _concatenated(name, [part[name] for part in parts]) for name in parts[0]}


def _concatenated(name: str, arrays: Sequence[Array]) -> Array:
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise BadAnswer(
            f"output {name!r} has samples of shape {list(shapes[0])} and of {list(shapes[-1])} in "
            "one batch: let the model give all of them one shape",
            name,
        )
    return np.concatenate(arrays)


def _check_rows(outputs: Mapping[str, Array], rows: int) -> None:
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise BadAnswer(
                f"output {name!r} has shape {list(array.shape)} for {rows} samples: "
                "its first dimension must be the batch",
                name,
            )
