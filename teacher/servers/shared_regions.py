"""System shared memory: tensors that lie in a caller's own memory, on this host only.

A region is a piece of a shared-memory object (`/dev/shm`) that a caller registers under a name. The
teacher does not map it: inputs are copied in with `pread` and outputs are written with `pwrite`,
through a descriptor that is open for reading only, and for writing only while something is written.
So a region that is cut short or goes away in the middle of a copy is a short read, which is
refused, and never a SIGBUS; and memory that is missing (`/dev/shm` is full) is an error, too.

**In place.** The memory of our readers has no name (`proto/shared_buffer.py`): a process that has
it open registers it. The kernel has been told never to let it become smaller, so it is mapped, and
inputs with a generation are read where they lie.

**Confined.** Only callers on this host may register, only objects whose name begins with `PREFIX`
and which belong to the caller's user, and only so many. Regions belong to who registered them: the
names of others mean nothing.

**Generations.** A caller that has given a request up (it was too late, another teacher was faster)
cannot know that the teacher has; a stopped process may go on an hour later, when the memory has
long been given to another batch. So a place may have a *generation*: a number in the 8 bytes before
it (unsigned, little-endian), which the caller changes before it uses the place for anything else,
and names in the request. An input is taken when the number is the one named both before and after
the copy, and one that is read in place when it still is after it was labelled; else the request is
refused, to be sent again. An output is written while the teacher
holds a lock (an exclusive one, of fcntl's open-file-description kind) on the number's 8 bytes, and
only if, under that lock, it is still the one named. So whoever takes a place back takes the same
lock, changes the number and lets go; where it does not get the lock, a teacher is writing there, or
was stopped while it did, and that place is to be left alone. Numbers that begin at random prove,
besides, that both sides look at the same memory.

Without a generation the extension is as Triton has it: safe for who waits for every answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ...errors import RateLimited, RequestRefused
from ...proto.datatypes import Parameter, quoted, to_bytes
from ...proto.forms import LabelForm
from ...proto.shared_buffer import BufferRef
from ...proto.tensors import Array, InferRequest, SlowToDecode
from .callers import CallerIdentity
from .shared_segment import SharedSegment, is_reader_memory

_MAX_NAME: Final = 256


#: Regions of one caller at one address, their bytes together, and regions of all callers.
REGIONS: Final = 64
REGION_BYTES: Final = 64 << 30
REGIONS_IN_ALL: Final = 512
#: Seconds after which a region goes that was not used and whose name is gone: then nothing but the
#: teacher may be left to keep its memory.
IDLE_S: Final = 60.0


@dataclass(slots=True)
class Region:
    """A segment under the name that tensors call it by; `used_s` is when that last happened."""

    segment: SharedSegment
    used_s: float = field(default=0.0)


class SharedMemoryRegions:
    """The regions of one teacher's callers; any thread may use them.

    Memory that a reader lends is read for callers by the Unix socket alone, where the kernel says
    which user they are. Of a connection by TCP that is found out from a list of the system.

    Args:
        place_bytes: of one tensor.
        system: named objects of `/dev/shm` may be registered, by TCP too.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        place_bytes: int = 256 << 20,
        *,
        system: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place_bytes = place_bytes
        self._system = system
        self._clock = clock
        self._lock = threading.Lock()
        self._regions: dict[str, dict[str, Region]] = {}  # owner -> name -> region

    def register(
        self, caller: CallerIdentity, name: str, key: str, *, offset: int, nbytes: int
    ) -> None:
        """Make a piece of the object `key` known as `name`, to this caller only.

        Raises:
            RequestRefused: the caller is elsewhere, the name is taken or impossible, or the object
                is not for it. Whether a lent one is, its use shows.
            RateLimited: it has as many regions as it may, or all callers have.
        """
        if not caller.is_here():
            raise RequestRefused(
                f"shared memory is for callers on this host, and {caller.host} is another: send "
                "tensors in the request"
            )
        if not 0 < len(name) <= _MAX_NAME:
            raise RequestRefused(f"a region's name has 1 to {_MAX_NAME} characters: {quoted(name)}")
        if not (self._system or is_reader_memory(key)):
            raise RequestRefused(
                "this teacher takes no named shared memory: send tensors in the request, or start"
                " it with --allow-system-shm"
            )
        segment = SharedSegment(key, offset, nbytes)
        if not segment.from_reader:
            segment.check_user(caller.listed_uid())
        self.sweep()
        with self._lock:
            mine = self._regions.get(caller.owner, {})
            if name in mine:
                raise RequestRefused(f"region {quoted(name)} is registered: unregister it first")
            self._check_room(mine, nbytes)
            mine[name] = Region(segment, self._clock())
            self._regions[caller.owner] = mine

    def unregister(self, caller: CallerIdentity, name: str = "") -> None:
        """Forget a region of this caller, or all; requests that use one now keep it till they end.

        One that is not registered is no error: it is gone, as it should be.
        """
        with self._lock:
            mine = self._regions.get(caller.owner, {})
            for one in [name] if name else list(mine):
                mine.pop(one, None)
            if not mine:
                self._regions.pop(caller.owner, None)

    def status(self, caller: CallerIdentity, name: str = "") -> dict[str, SharedSegment]:
        """This caller's regions by name, or the one of that name.

        Raises:
            RequestRefused: it has none of that name.
        """
        with self._lock:
            mine = dict(self._regions.get(caller.owner, {}))
        if name and name not in mine:
            raise self._unknown(name)
        return {one: mine[one].segment for one in ([name] if name else mine)}

    @property
    def owners(self) -> frozenset[str]:
        """Who has memory registered here; `CallerIdentity.owner` of each."""
        with self._lock:
            return frozenset(self._regions)

    def read(self, caller: CallerIdentity, ref: BufferRef) -> memoryview:
        """A copy of what lies at `ref`; raises what `SharedSegment.read` does, and `holding`."""
        return self.holding(caller, ref).read(ref)

    def holding(self, caller: CallerIdentity, ref: BufferRef) -> SharedSegment:
        """The segment in which an input lies.

        Raises:
            RequestRefused: the caller has no such region, or the input is too large.
        """
        if ref.nbytes > self._place_bytes:
            raise RequestRefused(
                f"an input of {ref.nbytes} bytes is larger than max "
                f"({self._place_bytes}): split the batch"
            )
        return self._used(caller, ref)

    def write(self, caller: CallerIdentity, ref: BufferRef, data: memoryview) -> None:
        """Put `data` at `ref`; raises what `SharedSegment.write` does, and for no region."""
        self._used(caller, ref).write(ref, data)

    def sweep(self) -> None:
        """Let go of regions that nobody but this process may know any more."""
        with self._lock:
            oldest_s = self._clock() - IDLE_S
            for owner, mine in list(self._regions.items()):
                for name, region in list(mine.items()):
                    if region.used_s < oldest_s and region.segment.unlinked:
                        del mine[name]
                if not mine:
                    del self._regions[owner]

    def _used(self, caller: CallerIdentity, ref: BufferRef) -> SharedSegment:
        with self._lock:
            region = self._regions.get(caller.owner, {}).get(ref.region)
            if region is None:
                raise self._unknown(ref.region)
            region.used_s = self._clock()
            segment = region.segment
        if segment.from_reader:
            if caller.uid is None:
                raise RequestRefused("lent memory is read for callers by the Unix socket alone")
            segment.check_user(caller.uid)
        return segment

    def _unknown(self, name: str) -> RequestRefused:
        return RequestRefused(f"no region {quoted(name)} of this caller is registered here")

    def _check_room(self, mine: dict[str, Region], nbytes: int) -> None:
        if len(mine) >= REGIONS:
            raise RateLimited(f"{len(mine)} regions are registered already: unregister some")
        if sum(map(len, self._regions.values())) >= REGIONS_IN_ALL:
            raise RateLimited("this teacher has no room for another region of shared memory")
        held = sum(region.segment.nbytes for region in mine.values())
        if held + nbytes > REGION_BYTES:
            raise RateLimited(
                f"{held} bytes are registered already, of {REGION_BYTES} that one caller "
                "may: unregister some"
            )


class RegionReader:
    """The inputs of one request; they must not be used for an answer unless `check` passes.

    Args:
        memory: the regions of all callers.
        caller: whose request it is.
    """

    def __init__(self, memory: SharedMemoryRegions, caller: CallerIdentity) -> None:
        self._memory = memory
        self._caller = caller
        self._in_place: list[tuple[SharedSegment, BufferRef]] = []

    def read(self, ref: BufferRef) -> memoryview:
        """What lies at `ref`; raises what `SharedMemoryRegions.read` does."""
        try:
            return self.read_in_place(ref)
        except SlowToDecode:
            return self._memory.read(self._caller, ref)

    def read_in_place(self, ref: BufferRef) -> memoryview:
        """The same for an event loop; raises Heavy where it has to be copied."""
        segment = self._memory.holding(self._caller, ref)
        if (data := segment.read_in_place(ref)) is None:
            raise SlowToDecode
        self._in_place.append((segment, ref))
        return data

    def check(self) -> None:
        """To be called when the inputs have been used.

        Raises:
            RetryableError: one was read in place, and belongs to another request by now.
        """
        for segment, ref in self._in_place:
            segment.check(ref)


def output_buffers(request: InferRequest) -> dict[str, BufferRef]:
    """Where outputs are wanted that are not to travel, by their names.

    Raises:
        WireError: a place is impossible.
        RequestRefused: an output that has several parts cannot lie in one place.
    """
    refs = {}
    for name, parameters in request.output_parameters.items():
        if (ref := BufferRef.from_parameters(parameters)) is None:
            continue
        form = LabelForm.from_parameters(parameters, request.parameters)
        if form is not None and form.k:
            raise RequestRefused(
                f"output {name!r} is asked for as {form}, in several parts, which cannot lie in "
                "one place of shared memory: ask for it without"
            )
        refs[name] = ref
    return refs


def write_outputs(
    memory: SharedMemoryRegions,
    caller: CallerIdentity,
    outputs: Mapping[str, Array],
    refs: Mapping[str, BufferRef],
) -> dict[str, dict[str, Parameter]]:
    """Write outputs to where the caller wants them; raises what `SharedMemoryRegions.write` does.

    Returns:
        For each place what the answer says of it, by the output's name.
    """
    said = {}
    for name, ref in refs.items():
        data = to_bytes(outputs[name])
        memory.write(caller, ref, data)
        said[name] = replace(ref, nbytes=len(data)).parameters()
    return said
