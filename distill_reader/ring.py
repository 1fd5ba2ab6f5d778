"""The trainer's shared memory: the ring of batches, and which arrays are in use."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ..proto.arena import Arena, Array, Record, dtype_named
from ..proto.shared_buffer import SharedBuffer
from ..runtime.errors import MemoryRefused


def memory_refused(arena: Arena, error: OSError) -> MemoryRefused:
    """Return the error to raise instead of an `OSError` of `Arena.allocate`."""
    return MemoryRefused(
        f"the system gives the reader no more than {arena.size_bytes >> 20} MiB of shared memory"
        f" ({error}): lower upper_bytes or the size of batches, or raise the limits of the training"
        " process (`ulimit -f`, `ulimit -v`, the memory of the container)"
    )


class _BaseRef(weakref.ref[Array]):
    """A weak reference to the base array of a record. Each view keeps that array alive."""

    __slots__ = ("offset",)
    offset: int


class ViewTracker:
    """Tracks which records of an arena have live views. Thread-safe.

    The garbage collector may drop a view at any moment, even during a call of this class, so the
    class takes no lock. The callback of the weak references is a method of a C type, not a Python
    function. Within a Python function, a signal handler could raise the exception of a Ctrl-C.
    Python ignores exceptions of these callbacks, so the Ctrl-C would be lost.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._refs: dict[int, _BaseRef] = {}
        self._dropped: deque[weakref.ref[Array]] = deque()

    def views(self, record: Record) -> list[Array]:
        """Return views of the arrays of `record`; `released` tells when all of them are gone."""
        # All arrays are slices of one array, `base`, over the whole record. numpy makes `base` the
        # base of each slice and of every view that a user makes of a slice. So `base` lives exactly
        # as long as any of them.
        start = record.offset
        base = self._arena.memory(start, record.nbytes)
        base_ref = self._refs[start] = _BaseRef(base, self._dropped.append)
        base_ref.offset = start
        return [
            np.ndarray(ref.shape, dtype_named(ref.dtype), base, ref.offset - start)
            for ref in record.arrays
        ]

    def released(self) -> list[int]:
        """Return the offsets of the records that lost their last view since the last call."""
        offsets: list[int] = []
        with suppress(IndexError):
            while True:
                ref = self._dropped.popleft()
                assert isinstance(ref, _BaseRef)
                del self._refs[ref.offset]
                offsets.append(ref.offset)
        return offsets


class Ring:
    """Copies batches into shared memory, and reuses the memory once no views are left. Thread-safe.

    The memory of batches may become free in any order.

    Attributes:
        arena: the shared memory.
    """

    def __init__(self) -> None:
        self.arena = SharedBuffer.create()
        self._tracker = ViewTracker(self.arena)
        self._lock = threading.Lock()

    def put(self, arrays: Sequence[Array]) -> tuple[Record, list[Array]]:
        """Copy a batch into shared memory.

        Returns:
            Its record, and views of the copies; the record is reused once all views are gone.

        Raises:
            MemoryRefused: the system refuses more shared memory.
            WireError: a dtype that shared memory cannot hold.
        """
        layouts = [(array.dtype, array.shape) for array in arrays]
        with self._lock:
            for offset in self._tracker.released():
                self.arena.free(offset)
            try:
                record = self.arena.allocate(layouts)
            except OSError as error:
                raise memory_refused(self.arena, error) from error
            views = self._tracker.views(record)
        for view, array in zip(views, arrays, strict=True):
            np.copyto(view, array)
        return record, views

    def close(self) -> None:
        self.arena.close()
