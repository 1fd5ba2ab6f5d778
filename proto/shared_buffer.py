"""Arrays that another process may read in place; each has a generation until it is freed.

A tensor whose elements are not sent in its message lies in registered shared memory. Its parameters
name the location. Three are of the system-shared-memory extension of the Open Inference Protocol,
two are our own:

```
shared_memory_region      text     the name under which the region was registered
shared_memory_byte_size   integer  size of the location: of an input exactly the tensor's, of an
                                   output at least the tensor's
shared_memory_offset      integer  start of the location in the region; 0 if missing
shared_memory_generation  integer  our own: the value of 8 bytes of the region while the location
                                   belongs to this request
shared_memory_generation_offset  integer  our own: start of these 8 bytes; if missing, they are
                                   right before the tensor
```

A region is a part of a memory object. A key identifies the object: the name of a file in
`/dev/shm`, or (our own extension) a process id and a descriptor of an unnamed memory file.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np

from ..runtime.errors import WireError
from .arena import ALIGNMENT, Arena, Layouts, Record
from .datatypes import Parameter

REGION: Final = "shared_memory_region"
BYTE_SIZE: Final = "shared_memory_byte_size"
OFFSET: Final = "shared_memory_offset"
GENERATION: Final = "shared_memory_generation"
GENERATION_OFFSET: Final = "shared_memory_generation_offset"
#: A generation is an unsigned little-endian integer of this many bytes.
GENERATION_BYTES: Final = 8
_DESCRIPTOR: Final = re.compile(r"edl-fd-([1-9][0-9]{0,9})-([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class BufferRef:
    """The location of one tensor in a region.

    Attributes:
        region: name of the region.
        offset: bytes from the start of the region.
        nbytes: size of the location.
        generation: the number that the 8 bytes at `generation_at` hold while the location belongs
            to this request; None if it has no generation.
        generation_offset: position of the generation, somewhere before `offset`: a tensor may begin
            in the middle of an array. None: right before `offset`.
    """

    region: str
    offset: int
    nbytes: int
    generation: int | None = None
    generation_offset: int | None = None

    @property
    def generation_at(self) -> int:
        """Position of the generation, in bytes from the start of the region."""
        adjacent = self.offset - GENERATION_BYTES
        return adjacent if self.generation_offset is None else self.generation_offset

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Parameter]) -> Self | None:
        """Read the location from a tensor's parameters; None if they name none.

        Raises:
            WireError: the location is incomplete or impossible.
        """
        if REGION not in parameters:
            return None
        region = parameters[REGION]
        if not isinstance(region, str):
            raise WireError(f"{REGION} is the name of a region, not {region!r:.60}")
        if BYTE_SIZE not in parameters:
            raise WireError(f"{REGION} is given without {BYTE_SIZE}")
        generation = _number(parameters, GENERATION) if GENERATION in parameters else None
        generation_offset = (
            _number(parameters, GENERATION_OFFSET) if GENERATION_OFFSET in parameters else None
        )
        nbytes = _number(parameters, BYTE_SIZE)
        ref = cls(region, _number(parameters, OFFSET), nbytes, generation, generation_offset)
        latest = ref.offset - GENERATION_BYTES
        if generation is not None and not 0 <= ref.generation_at <= latest:
            raise WireError(
                f"the {GENERATION_BYTES} bytes of a generation must lie in the region before the "
                f"tensor; {OFFSET} is {ref.offset}, {GENERATION_OFFSET} is {generation_offset}"
            )
        return ref

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters that name this location."""
        named: dict[str, Parameter] = {REGION: self.region, BYTE_SIZE: self.nbytes}
        if self.offset:
            named[OFFSET] = self.offset
        if self.generation is not None:
            named[GENERATION] = self.generation
        if self.generation_at != self.offset - GENERATION_BYTES:
            named[GENERATION_OFFSET] = self.generation_at
        return named


def key_of(pid: int, fd: int) -> str:
    """Return the key of the memory file that process `pid` has open as `fd`."""
    return f"edl-fd-{pid}-{fd}"


def descriptor_of(key: str) -> tuple[int, int] | None:
    """Return the pid and descriptor that a key names; None if it names a file in `/dev/shm`."""
    match = _DESCRIPTOR.fullmatch(key)
    return None if match is None else (int(match[1]), int(match[2]))


def _number(parameters: Mapping[str, Parameter], name: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise WireError(f"{name} is an integer from 0 on, not {value!r:.60}")
    return value


#: The margin before each array; it ends with the generation.
_MARGIN: Final = (np.dtype(np.uint8), (ALIGNMENT,))
_GENERATION: Final = struct.Struct("<Q")
_NO_GENERATION: Final = 0


class BufferLocation(NamedTuple):
    """The location of a tensor in a `SharedBuffer`; offsets are in bytes from its start."""

    offset: int
    generation: int
    generation_offset: int


class SharedBuffer(Arena):
    """An arena whose arrays each have a generation, which changes when the array is freed.

    The allocating process writes generations; other processes compare them with the generation in a
    request. Only one thread at a time may call `allocate` or `free`.
    """

    NAME: ClassVar = "edl-lent"

    def __init__(self, fd: int, size_bytes: int) -> None:
        super().__init__(fd, size_bytes)
        self._next_generation = int.from_bytes(os.urandom(7)) + 1

    @property
    def key(self) -> str:
        """The key by which other processes of this host find the memory; valid until `close`."""
        return key_of(os.getpid(), self.fd)

    def allocate(self, layouts: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> Record:
        """Allocate as `Arena.allocate`, and give each array a new generation."""
        with_margins = [part for layout in layouts for part in (_MARGIN, layout)]
        record = super().allocate(with_margins)
        for ref in record.arrays:
            _GENERATION.pack_into(self._map, ref.offset - GENERATION_BYTES, self._next_generation)
            self._next_generation += 1
        return record

    def free(self, offset: int) -> None:
        """Free as `Arena.free`, and clear the generations so that readers notice the change."""
        _, record = self._allocated[offset]
        for ref in record.arrays:
            _GENERATION.pack_into(self._map, ref.offset - GENERATION_BYTES, _NO_GENERATION)
        super().free(offset)

    def generation(self, offset: int) -> int:
        """Return the generation of the array at `offset`; it changes when the memory is freed.

        Raises:
            WireError: no array can lie there.
        """
        if offset < ALIGNMENT or (offset > self.size_bytes and self._grown_size(offset) < offset):
            raise WireError(
                f"no array lies at byte {offset} of a shared memory of {self.size_bytes} bytes"
            )
        generation: int = _GENERATION.unpack_from(self._map, offset - GENERATION_BYTES)[0]
        return generation

    def are_current(self, generations: Iterable[tuple[int, int]]) -> bool:
        """Return whether all arrays, given as (offset, generation), are unchanged. Thread-safe."""
        return all(self.generation(offset) == number for offset, number in generations)

    def _new_record(self, key: Layouts) -> Record:
        """Allocate as `Arena._new_record`, and leave the margins out of the record."""
        record = super()._new_record(key)
        return Record(record.offset, record.nbytes, record.arrays[1::2])
