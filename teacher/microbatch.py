"""Runs a batch through a model in micro-batches and joins what comes out.

A batch on the wire and a batch in the model are two sizes: Paddle on a CPU is a quarter faster at 4
to 8 samples than at 32. The served teacher and an in-process one both go through this function,
which is why their answers agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..errors import BadAnswer
from ..proto.arena import Array

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


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
    rows = len(next(iter(inputs.values())))
    parts = [
        _run_rows(run, inputs, start, min(start + micro_batch, rows))
        for start in range(0, rows, micro_batch)
    ]
    if len(parts) == 1:
        return dict(parts[0])
    return {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}


def _joined(name: str, arrays: Sequence[Array]) -> Array:
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise BadAnswer(
            f"output {name!r} has samples of shape {list(shapes[0])} and of {list(shapes[-1])} in "
            "one batch: let the model give all of them one shape",
            name,
        )
    return np.concatenate(arrays)


def _run_rows(run: Run, inputs: Mapping[str, Array], start: int, stop: int) -> Mapping[str, Array]:
    outputs = run({name: array[start:stop] for name, array in inputs.items()})
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != stop - start:
            raise BadAnswer(
                f"output {name!r} has shape {list(array.shape)} for {stop - start} samples: "
                "its first dimension must be the batch",
                name,
            )
    return outputs
