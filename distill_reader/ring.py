"""The trainer's shared memory: the ring that batches lie in."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ..errors import MemoryRefused
from ..proto.arena import Arena, Array, Record, dtype_named
from ..proto.shared_buffer import SharedBuffer


def refused(arena: Arena, error: OSError) -> MemoryRefused:
    """What to raise in place of what `Arena.allocate` has raised."""
    return MemoryRefused(
        f"the system gives the reader no more than {arena.size_bytes >> 20} MiB of shared memory"
        f" ({error}): lower upper_bytes or the size of batches, or raise its limits (`ulimit -f`,"
        " `ulimit -v`, the memory of the container)"
    )


class _Lease(weakref.ref[Array]):
    """Refers to the one array over a record, which every view of it keeps alive."""

    __slots__ = ("offset",)
    offset: int


class ArrayLeases:
    """The records of an arena that somebody views, and those whose last view is gone.

    Views end wherever the garbage collector runs, which may be inside any of our own calls: so all
    this goes without a lock. The callback of a weak reference is a method of a C type: a signal
    handler could run inside a Python callback, and Python ignores exceptions raised there, so
    Ctrl-C would be lost.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._open: dict[int, _Lease] = {}
        self._over: deque[weakref.ref[Array]] = deque()

    def views(self, record: Record) -> list[Array]:
        """The arrays of `record`, without a copy; it is over when the last view is gone."""
        # All are cut from one array over the whole record: numpy makes it the base of each of them,
        # and of every view that a user makes of those, so that it lives exactly as long as they do.
        start = record.offset
        whole = self._arena.memory(start, record.nbytes)
        lease = self._open[start] = _Lease(whole, self._over.append)
        lease.offset = start
        return [
            np.ndarray(ref.shape, dtype_named(ref.dtype), whole, ref.offset - start)
            for ref in record.arrays
        ]

    def over(self) -> list[int]:
        """Offsets of records to give back, each once; any thread may ask, several at a time too."""
        offsets: list[int] = []
        with suppress(IndexError):
            while True:
                lease = self._over.popleft()
                assert isinstance(lease, _Lease)
                del self._open[lease.offset]
                offsets.append(lease.offset)
        return offsets


class Ring:
    """The trainer's side of the buffer: writes batches, gives their memory back when it is let go.

    `put` and `reclaim` belong to one thread (the one that pulls from the source); views may be
    dropped anywhere.
    """

    def __init__(self) -> None:
        self.arena = SharedBuffer.create()
        self._leases = ArrayLeases(self.arena)

    def put(self, arrays: Sequence[Array]) -> tuple[Record, list[Array]]:
        """Copy a batch into shared memory, once: its record, and views that keep it there.

        Raises:
            MemoryRefused: there is no more of it.
            WireError: a dtype that shared memory cannot hold.
        """
        self.reclaim()
        try:
            record = self.arena.allocate([(array.dtype, array.shape) for array in arrays])
        except OSError as error:
            raise refused(self.arena, error) from error
        views = self._leases.views(record)
        for view, array in zip(views, arrays, strict=True):
            np.copyto(view, array)
        return record, views

    def reclaim(self) -> None:
        """Free the records whose last view is gone."""
        for offset in self._leases.over():
            self.arena.free(offset)

    def close(self) -> None:
        self.arena.close()
