"""The reader's buffer: records of shared memory that live until their last reader lets go.

Batches lie in one arena, which the trainer's side allocates, labels in another, which the engine
allocates. What `views` hands out are views of that memory, without a copy; the record is given back
when the last of them is gone, whichever thread drops it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from ..proto.arena import Arena, Array, ArrayRef, Record, dtype_named
from ..proto.lent_arena import LentArena


class Ring:
    """The trainer's side of the buffer: writes batches, gives their memory back when it is let go.

    `put` and `reclaim` belong to one thread (the one that pulls from the source); views may be
    dropped anywhere.
    """

    def __init__(self) -> None:
        self.arena = LentArena.create()
        # Filled by the garbage collector, which may run inside any of our own calls: so without a
        # lock, emptied before the next allocation.
        self._dropped: deque[int] = deque()

    def put(self, arrays: Sequence[Array]) -> Record:
        """Copy a batch into shared memory, once."""
        self.reclaim()
        return self.arena.put(arrays)

    def views(self, record: Record) -> list[Array]:
        """The arrays of `record`; its memory is given back when the last view is gone."""
        return lease(self.arena, record, self._dropped.append)

    def drop(self, record: Record) -> None:
        """Give back a record that nobody has views of."""
        self._dropped.append(record.offset)

    def reclaim(self) -> None:
        """Free what was dropped since."""
        with suppress(IndexError):
            while True:
                self.arena.free(self._dropped.popleft())

    def close(self) -> None:
        self.arena.close()


def lease(arena: Arena, record: Record, on_release: Callable[[int], None]) -> list[Array]:
    """Views of a record's arrays; `on_release(offset)` is called when the last one is gone."""
    # All views are cut from one array over the whole record: numpy makes it the base of each of
    # them, and of every view a user makes of those, so that it lives exactly as long as they do.
    whole = arena.memory(record.offset, record.nbytes)
    weakref.finalize(whole, on_release, record.offset).atexit = False
    return [_cut(whole, ref, record.offset) for ref in record.arrays]


def _cut(whole: Array, ref: ArrayRef, start: int) -> Array:
    dtype = dtype_named(ref.dtype)
    count = int(np.prod(ref.shape, dtype=np.int64))
    begin = ref.offset - start
    return whole[begin : begin + count * dtype.itemsize].view(dtype).reshape(ref.shape)
