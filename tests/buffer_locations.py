"""Finds arrays in shared memory by their addresses, to compare with what requests say."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from edl.proto.arena import ALIGNMENT, Array
from edl.proto.datatypes import to_bytes
from edl.proto.shared_buffer import GENERATION_BYTES, BufferLocation, SharedBuffer


def located(arena: SharedBuffer, value: Array) -> BufferLocation | None:
    """The location of an array of the arena, or of a run of its rows; None for other memory."""
    memory, mapped = to_bytes(value), cast(Any, arena.memory(0, 1)).base.obj
    # numpy makes the array of `Arena.memory` the base of every view that is made of it.
    array, base = None, cast(Any, memory.obj)
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    if array is None or not memory.nbytes or getattr(base, "obj", None) is not mapped:
        return None
    start = _address(arena.memory(0, 1))
    begin = _address(array) - start
    generation = arena.generation(begin) if begin >= ALIGNMENT else 0
    if not generation:
        return None
    offset = _address(np.frombuffer(memory, np.uint8)) - start
    return BufferLocation(offset, generation, begin - GENERATION_BYTES)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
