"""Where a tensor lies when it does not travel in its message: a place in registered shared memory.

These are the parameters of a tensor in the system-shared-memory extension of the Open Inference
Protocol, and one of ours:

```
shared_memory_region      text     the region, by the name under which it was registered
shared_memory_byte_size   integer  bytes there; those of the tensor, for an output at least as many
shared_memory_offset      integer  where they begin in the region; 0 where it is not given
shared_memory_generation  integer  ours: what 8 bytes of the region hold for as long as the place
                                   belongs to this request
shared_memory_generation_offset  integer  ours: where these 8 bytes begin; those right before the
                                   tensor's own where it is not given
```

The object that a region is a piece of is found by a key: a name of `/dev/shm`, or, ours too, that
of a memory file without a name, which is known by a process that has it open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ..errors import WireError

Parameter = bool | int | float | str

REGION: Final = "shared_memory_region"
BYTE_SIZE: Final = "shared_memory_byte_size"
OFFSET: Final = "shared_memory_offset"
GENERATION: Final = "shared_memory_generation"
GENERATION_OFFSET: Final = "shared_memory_generation_offset"
#: Bytes of a generation: an unsigned little-endian integer.
GENERATION_BYTES: Final = 8
_DESCRIPTOR: Final = re.compile(r"edl-fd-([1-9][0-9]{0,9})-([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies.

    Attributes:
        region: name of the region.
        offset: bytes from the region's beginning.
        nbytes: bytes of the place.
        generation: what stands in the `GENERATION_BYTES` from `generation_at` on while the place is
            this request's; None: nothing says whose it is.
        generation_offset: where that is, somewhere before `offset`: a tensor may be the later part
            of what has this generation; None: right before `offset`.
    """

    region: str
    offset: int
    nbytes: int
    generation: int | None = None
    generation_offset: int | None = None

    @property
    def generation_at(self) -> int:
        """Where the generation begins, in bytes from the region's beginning."""
        before = self.offset - GENERATION_BYTES
        return before if self.generation_offset is None else self.generation_offset

    @property
    def is_possible(self) -> bool:
        """Whether its generation, if it has one, stands before it."""
        latest = self.offset - GENERATION_BYTES
        return self.generation is None or 0 <= self.generation_at <= latest

    @classmethod
    def named_by(cls, parameters: Mapping[str, Parameter]) -> Self | None:
        """The place that a tensor's parameters name; None where they name none.

        Raises:
            WireError: they name half of one, or an impossible one.
        """
        if REGION not in parameters:
            return None
        region = parameters[REGION]
        if not isinstance(region, str):
            raise WireError(f"{REGION} is the name of a region, not {region!r:.60}")
        if BYTE_SIZE not in parameters:
            raise WireError(f"{REGION} is given without {BYTE_SIZE}")
        generation = _number(parameters, GENERATION) if GENERATION in parameters else None
        stands_at = (
            _number(parameters, GENERATION_OFFSET) if GENERATION_OFFSET in parameters else None
        )
        nbytes = _number(parameters, BYTE_SIZE)
        place = cls(region, _number(parameters, OFFSET), nbytes, generation, stands_at)
        if not place.is_possible:
            raise WireError(
                f"a generation is held by {GENERATION_BYTES} bytes of the region before its place; "
                f"{OFFSET} is {place.offset}, {GENERATION_OFFSET} is {stands_at}"
            )
        return place

    def parameters(self) -> dict[str, Parameter]:
        """What names this place."""
        named: dict[str, Parameter] = {REGION: self.region, BYTE_SIZE: self.nbytes}
        if self.offset:
            named[OFFSET] = self.offset
        if self.generation is not None:
            named[GENERATION] = self.generation
        if self.generation_at != self.offset - GENERATION_BYTES:
            named[GENERATION_OFFSET] = self.generation_at
        return named


def key_of(pid: int, fd: int) -> str:
    """The key of the memory file that process `pid` has open as `fd`."""
    return f"edl-fd-{pid}-{fd}"


def descriptor_of(key: str) -> tuple[int, int] | None:
    """The process and the descriptor that a key names; None: it is a name of `/dev/shm`."""
    found = _DESCRIPTOR.fullmatch(key)
    return None if found is None else (int(found[1]), int(found[2]))


def _number(parameters: Mapping[str, Parameter], name: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise WireError(f"{name} is an integer from 0 on, not {value!r:.60}")
    return value
