"""Locations of arrays in shared memory, found by their addresses, to check those in requests."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from edl.proto.arena import ALIGNMENT, Array
from edl.proto.datatypes import to_bytes
from edl.proto.shared_buffer import GENERATION_BYTES, BufferLocation, SharedBuffer


def located(arena: SharedBuffer, value: Array) -> BufferLocation | None:
    """Return the location of an array in the arena, or of some of its rows; None: other memory."""
    memory, mapped = to_bytes(value), cast(Any, arena.memory(0, 1)).base.obj
    # All views share the array of `Arena.get` or `Arena.memory` as their numpy base.
    array, base = None, cast(Any, memory.obj)
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    if array is None or not memory.nbytes or getattr(base, "obj", base) is not mapped:
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
