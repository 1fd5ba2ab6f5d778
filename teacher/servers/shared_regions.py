"""System shared memory: tensors in a caller's own memory, on this host only.

A region is a range of a shared-memory object (`/dev/shm`) that a caller registers under a name. The
teacher does not map it: it copies inputs with `pread` and writes outputs with `pwrite`. So an
object that is truncated during a copy causes a short read, which is refused, and never a SIGBUS. A
full `/dev/shm` causes an error too. The teacher keeps a descriptor for reading; it has one for
writing only during a write. Our own readers do not register their memory (`reader_memory.py`).

**Confined.** Only callers on this host may register, only objects with the prefix `PREFIX` that
belong to the caller's user, and only a limited number. A caller can use only the regions that it
has registered itself. Without credentials, all programs of this host are one caller.

**Generations.** A caller that gives a request up (because it is late, or another teacher was
faster) cannot know whether the teacher gave it up too. A suspended teacher may continue an hour
later, when the memory belongs to another batch. So the location of an array in a region may have a
*generation*: a number in 8 bytes before it (unsigned, little-endian), which the caller names in the
request and changes before it reuses the memory. A copied input is valid if the number is the same
before and after the copy. An input in the memory of a reader is valid if the number is still the
same after the input was labelled. Otherwise the request is refused and may be sent again. An output
is written under an exclusive lock (an open-file-description lock of fcntl) on the 8 bytes of the
generation, and only if the generation is still the same. To reuse the memory, the caller takes the
same lock, changes the number and unlocks. If it does not get the lock, a teacher is writing, or was
stopped while writing, and the memory must not be reused. Generations start at a random number, so
equal generations also prove that both sides see the same memory.

Without generations, the extension works as in Triton: it is safe for callers that wait for every
answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ...proto.arena import Array
from ...proto.datatypes import Parameter, quoted, to_bytes
from ...proto.forms import LabelForm
from ...proto.shared_buffer import BufferRef
from ...proto.tensors import InferRequest
from ...runtime.errors import RateLimited, RequestRefused
from .callers import CallerIdentity
from .shared_segment import SharedSegment, check_user

_MAX_NAME: Final = 256


#: Limits: regions of one caller at one address, their total bytes, and regions of all callers.
REGIONS: Final = 64
REGION_BYTES: Final = 64 << 30
REGIONS_IN_ALL: Final = 512
#: Seconds after which an unused region is released if its object has no name (any more), because
#: the teacher may then be the last process that keeps the memory alive.
IDLE_S: Final = 60.0


class SharedMemoryRegions:
    """The regions of a teacher's callers. Any thread may use them.

    Args:
        max_input_bytes: limit of the bytes of one input.
        enabled: whether regions may be registered.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        max_input_bytes: int = 256 << 20,
        *,
        enabled: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_input_bytes = max_input_bytes
        self._enabled = enabled
        self._clock = clock
        self._lock = threading.Lock()
        self._regions: dict[str, dict[str, SharedSegment]] = {}  # owner -> name -> segment

    def register(
        self, caller: CallerIdentity, name: str, key: str, *, offset: int, nbytes: int
    ) -> None:
        """Register a range of the object `key` as `name`, for this caller only.

        Raises:
            RequestRefused: the caller is on another host, the name is taken or invalid, or the
                object does not belong to the caller's user.
            RateLimited: this caller has too many regions or bytes, or all callers too many regions.
        """
        if not 0 < len(name) <= _MAX_NAME:
            raise RequestRefused(f"a region's name has 1 to {_MAX_NAME} characters: {quoted(name)}")
        if not self._enabled:
            raise RequestRefused(
                "this teacher accepts no named shared memory: send tensors in the request, or start"
                " it with --allow-system-shm"
            )
        uid = caller.listed_uid()
        segment = SharedSegment(key, offset, nbytes)
        check_user(key, segment.uid, uid)
        self.sweep()
        with self._lock:
            regions = self._regions.get(caller.owner, {})
            if name in regions:
                raise RequestRefused(f"region {quoted(name)} is registered: unregister it first")
            self._check_room(regions, nbytes)
            segment.used_s = self._clock()
            regions[name] = segment
            self._regions[caller.owner] = regions

    def unregister(self, caller: CallerIdentity, name: str = "") -> None:
        """Remove a region of this caller, or all of them; running requests keep theirs.

        A region that is not registered is no error.
        """
        with self._lock:
            regions = self._regions.get(caller.owner, {})
            for region in [name] if name else list(regions):
                regions.pop(region, None)
            if not regions:
                self._regions.pop(caller.owner, None)

    def status(self, caller: CallerIdentity, name: str = "") -> dict[str, SharedSegment]:
        """Return the regions of this caller by name, or only the one with this name.

        Raises:
            RequestRefused: the caller has no region with this name.
        """
        with self._lock:
            regions = dict(self._regions.get(caller.owner, {}))
        if name and name not in regions:
            raise self._unknown(name)
        return {name: regions[name]} if name else regions

    def read(self, caller: CallerIdentity, ref: BufferRef) -> memoryview:
        """Copy the input at `ref`.

        Raises:
            RequestRefused: the caller has no such region, the input is too large, or as
                `SharedSegment.read`.
            RetryableError: as `SharedSegment.read`.
        """
        if ref.nbytes > self._max_input_bytes:
            raise RequestRefused(
                f"an input of {ref.nbytes} bytes is larger than max "
                f"({self._max_input_bytes}): split the batch"
            )
        return self._segment_for_use(caller, ref).read(ref)

    def write(self, caller: CallerIdentity, ref: BufferRef, data: memoryview) -> None:
        """Write `data` at `ref`; raises as `SharedSegment.write` and for an unknown region."""
        self._segment_for_use(caller, ref).write(ref, data)

    def sweep(self) -> None:
        """Release each region that was unused for `IDLE_S`, if its object has no name."""
        with self._lock:
            oldest_s = self._clock() - IDLE_S
            for owner, regions in list(self._regions.items()):
                for name, segment in list(regions.items()):
                    if segment.used_s < oldest_s and segment.unlinked:
                        del regions[name]
                if not regions:
                    del self._regions[owner]

    def _segment_for_use(self, caller: CallerIdentity, ref: BufferRef) -> SharedSegment:
        with self._lock:
            segment = self._regions.get(caller.owner, {}).get(ref.region)
            if segment is None:
                raise self._unknown(ref.region)
            segment.used_s = self._clock()
            return segment

    def _unknown(self, name: str) -> RequestRefused:
        return RequestRefused(f"no region {quoted(name)} of this caller is registered here")

    def _check_room(self, regions: dict[str, SharedSegment], nbytes: int) -> None:
        if len(regions) >= REGIONS:
            raise RateLimited(f"{len(regions)} regions are registered already: unregister some")
        if sum(map(len, self._regions.values())) >= REGIONS_IN_ALL:
            raise RateLimited("this teacher has no room for another region of shared memory")
        registered_bytes = sum(segment.nbytes for segment in regions.values())
        if registered_bytes + nbytes > REGION_BYTES:
            raise RateLimited(
                f"{registered_bytes} bytes are registered already, of {REGION_BYTES} that one "
                "caller may register: unregister some"
            )


def output_buffers(request: InferRequest) -> dict[str, BufferRef]:
    """Return locations of outputs that the caller wants in its memory, by name.

    Raises:
        WireError: a location is impossible.
        RequestRefused: an output of several parts cannot lie at one location.
    """
    refs = {}
    for name, parameters in request.output_parameters.items():
        if (ref := BufferRef.from_parameters(parameters)) is None:
            continue
        form = LabelForm.from_parameters(parameters, request.parameters)
        if form is not None and form.k:
            raise RequestRefused(
                f"output {name!r} is asked for as {form}: its several parts cannot lie at one "
                "location in shared memory; ask for it without a location"
            )
        refs[name] = ref
    return refs


def write_outputs(
    memory: SharedMemoryRegions,
    caller: CallerIdentity,
    outputs: Mapping[str, Array],
    refs: Mapping[str, BufferRef],
) -> dict[str, dict[str, Parameter]]:
    """Write outputs to the caller's memory; raises the errors of `SharedSegment.write`.

    Returns:
        The parameters of each output in the answer, by name.
    """
    locations = {}
    for name, ref in refs.items():
        data = to_bytes(outputs[name])
        memory.write(caller, ref, data)
        locations[name] = replace(ref, nbytes=len(data)).parameters()
    return locations
