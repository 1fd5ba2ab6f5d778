"""The positions of a batch's samples, put into the batch where `job/batches.py` takes them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import BatchError
from ...proto.arena import Array
from ..job.batches import POSITIONS


def with_positions(batch: Any, positions: Array) -> Any:
    """The batch with its positions, int64 [rows]: the last field, in a dict `POSITIONS`.

    A bare array becomes a tuple, a list of one dict (of a static-graph loader of Paddle) stays one.

    Raises:
        BatchError: a dict has a field of that name.
    """
    if isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], Mapping):
        return [with_positions(batch[0], positions)]
    if isinstance(batch, Mapping):
        if POSITIONS in batch:
            raise BatchError(f"a batch has a field {POSITIONS!r}, which is ours; rename it")
        return {**batch, POSITIONS: positions}
    if isinstance(batch, list):
        return [*batch, positions]
    return (*batch, positions) if isinstance(batch, tuple) else (batch, positions)
