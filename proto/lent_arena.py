"""An arena whose arrays other programs of this host may read in place, and know whether they may.

The Open Inference Protocol's shared-memory extension names memory by a key and a place in it. The
key of a lent arena is that of a descriptor which a process has open: it is never the name of a
file, so nothing is left behind by whoever dies, and a full `/dev/shm` is no obstacle.

Before each array stand 64 bytes of which the last 8 are its *generation*: a number that no other
array of any arena has, as it begins at random. It is void once the record is freed. So who reads an
array late, be it after an hour of being stopped, finds another number than it was told, and who
looks at other memory than was meant finds none that is right.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, cast

import numpy as np

from ..errors import WireError
from .arena import ALIGNMENT, Arena, ArrayRef, Layouts, Record
from .places import GENERATION_BYTES, key_of

#: What stands before each array.
_MARGIN: Final = (np.dtype(np.uint8), (ALIGNMENT,))
_STAMP: Final = struct.Struct("<Q")
_VOID: Final = 0


class Lent(NamedTuple):
    """Where memory of an arena lies; in bytes from the arena's beginning."""

    offset: int
    generation: int
    generation_offset: int


class LentArena(Arena):
    """See the module. The side that allocates makes generations, any side can name places."""

    NAME: ClassVar = "edl-lent"

    def __init__(self, fd: int, size_bytes: int) -> None:
        super().__init__(fd, size_bytes)
        self._next = int.from_bytes(os.urandom(7)) + 1
        self._stamped: dict[int, Record] = {}

    @property
    def key(self) -> str:
        """By which programs of this host find the memory, while this process has it open."""
        return key_of(os.getpid(), self.fd)

    def allocate(self, layouts: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> Record:
        """As of `Arena`, each array with a generation of its own."""
        record = super().allocate([each for layout in layouts for each in (_MARGIN, layout)])
        self._stamped[record.offset] = record
        for ref in record.arrays:
            self._stamp(ref.offset, self._next)
            self._next += 1
        return record

    def free(self, offset: int) -> None:
        """As of `Arena`; from now on nobody takes the arrays for what they were."""
        if (record := self._stamped.pop(offset, None)) is not None:
            for ref in record.arrays:
                self._stamp(ref.offset, _VOID)
        super().free(offset)

    def generation(self, ref: ArrayRef) -> int:
        """The number of the array at `ref`; another one than it was where its memory was freed."""
        return self._generation(ref.offset)

    def are_current(self, stamps: Iterable[tuple[int, int]]) -> bool:
        """Whether arrays at these offsets still have these generations; any thread may ask."""
        return all(self._generation(offset) == number for offset, number in stamps)

    def lent(self, memory: memoryview) -> Lent | None:
        """Where an array of `get` lies, or a run of its rows, by its bytes; and its generation.

        Returns:
            None for memory that is not an array's of this arena, or that was mapped before the
            arena grew.
        """
        # numpy makes the array that `get` begins with the base of every view that is made of it.
        array, base = None, cast(Any, memory.obj)
        while isinstance(base, np.ndarray):
            array, base = base, base.base
        mapped = self._map
        if (
            array is None
            or not memory.nbytes
            or not isinstance(base, memoryview)
            or base.obj is not mapped
        ):
            return None
        arena = _address(np.frombuffer(mapped, np.uint8, 1))
        begins = _address(array) - arena
        if begins < ALIGNMENT:
            return None
        generation = self._generation(begins)
        if generation == _VOID:
            return None
        offset = _address(np.frombuffer(memory, np.uint8)) - arena
        return Lent(offset, generation, begins - GENERATION_BYTES)

    def _made(self, kind: Layouts) -> Record:
        """As of `Arena`, the margins left out."""
        whole = super()._made(kind)
        return Record(whole.offset, whole.nbytes, whole.arrays[1::2])

    def _stamp(self, offset: int, generation: int) -> None:
        _STAMP.pack_into(self._map, offset - GENERATION_BYTES, generation)

    def _generation(self, offset: int) -> int:
        if self._reach(offset) < offset:
            raise WireError(
                f"no array lies at byte {offset} of a shared memory of {self._size} bytes"
            )
        generation: int = _STAMP.unpack_from(self._map, offset - GENERATION_BYTES)[0]
        return generation


def _address(array: np.ndarray[Any, np.dtype[Any]]) -> int:
    return int(array.__array_interface__["data"][0])
