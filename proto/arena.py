"""Shared memory for arrays: one growable segment, cut into records that are allocated and freed.

`tune_allocator` makes glibc keep large freed buffers instead of returning each to the kernel. By
default glibc maps every buffer of some megabytes anew and the kernel zeroes its pages one fault at
a time, which takes two thirds of the time of a 19 MB message. The processes of EDL-Dist that move
batches (a teacher's I/O process and predictors, and a reader's engine) call it once at their start.
The user's own process is not changed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import platform
import threading
from bisect import insort
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..runtime.errors import WireError

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_MMAP_THRESHOLD_BYTES = 1 << 30
#: The largest mmap threshold that old versions of glibc accept.
_MMAP_THRESHOLD_BYTES_OLD_GLIBC = 32 << 20
_TRIM_THRESHOLD_BYTES = (1 << 31) - 1


def tune_allocator() -> bool:
    """Keep freed buffers of up to 1 GiB in this process, which then stays near its peak size.

    An old glibc keeps buffers of up to 32 MiB only.

    Returns:
        Whether it had an effect: only with glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    is_set = mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES) or mallopt(
        _M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES_OLD_GLIBC
    )
    return bool(is_set and mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES))


Array = np.ndarray[Any, np.dtype[Any]]
#: The dtype and shape of each array of a record.
Layouts = tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]

ALIGNMENT = 64
#: The smallest step by which an arena grows, so that not every record remaps it.
GROWTH_BYTES = 4 << 20


class ArrayRef(NamedTuple):
    """The location of one array in an arena, with its dtype and shape. A list in JSON."""

    dtype: str  # as numpy spells it with byte order ("<f4"), or a name of ml_dtypes
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the arena

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        return cls(str(value[0]), tuple(map(int, value[1])), int(value[2]))


class Record(NamedTuple):
    """A range of an arena that holds some arrays and is freed as a whole, by its offset."""

    offset: int
    nbytes: int
    arrays: tuple[ArrayRef, ...]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        return cls(int(value[0]), int(value[1]), tuple(map(ArrayRef.from_json, value[2])))


class Arena:
    """Growable shared memory cut into records. Safe to use from several threads.

    Several processes may map an arena, but only one of them, its creator or another, may allocate
    and free. The others read the arrays whose references they receive.

    Args:
        fd: a memory file; the arena owns and closes it.
        size_bytes: the current size of the file.

    Attributes:
        fd: descriptor of the memory file; -1 after `close`.
        size_bytes: bytes of the memory file that this process has mapped, used or not.
        used_bytes: bytes of all records that this process has allocated and not freed.
    """

    #: Name of the memory file in lists of open files.
    NAME: ClassVar = "edl"

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.used_bytes = 0
        self.size_bytes = size_bytes
        self._lock = threading.Lock()
        self._map = mmap.mmap(fd, size_bytes)
        self._free_ranges: list[tuple[int, int]] = [(0, size_bytes)]  # (offset, bytes), by offset
        self._allocated: dict[int, tuple[Layouts, Record]] = {}
        # Freed records. The last one of each layout is reused first: the CPU's cache may hold it.
        self._freed_records: dict[Layouts, list[Record]] = {}

    @classmethod
    def create(cls, size_bytes: int = GROWTH_BYTES) -> Self:
        """Create an arena of `size_bytes`; children do not inherit its descriptor by default."""
        fd = os.memfd_create(cls.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            os.ftruncate(fd, size_bytes)
            return cls(fd, size_bytes)
        except OSError:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Map an arena that another process has created.

        A process that will allocate from the arena must attach before any record exists, because it
        takes the whole file as free.
        """
        return cls(fd, os.fstat(fd).st_size)

    def put(self, arrays: Sequence[Array]) -> Record:
        """Copy `arrays` into a new record; raises the errors of `allocate`."""
        record = self.allocate([(array.dtype, array.shape) for array in arrays])
        for ref, array in zip(record.arrays, arrays, strict=True):
            np.copyto(self.get(ref), array)
        return record

    def allocate(self, layouts: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> Record:
        """Allocate a record for arrays of these dtypes and shapes; its content is undefined.

        Raises:
            WireError: a dtype holds objects or fields, which shared memory cannot store.
            OSError: the system refuses the memory.
        """
        key = tuple(layouts)
        with self._lock:
            freed = self._freed_records.get(key)
            record = freed.pop() if freed else self._new_record(key)
            self._allocated[record.offset] = (key, record)
            self.used_bytes += record.nbytes
        return record

    def get(self, ref: ArrayRef) -> Array:
        """Return the array at `ref` as a writable view of the shared memory.

        Raises:
            WireError: `ref` has a negative dimension, points outside the arena, or names a dtype
                whose elements are Python objects.
        """
        dtype = dtype_named(ref.dtype)
        end = ref.offset + dtype.itemsize * math.prod(ref.shape)
        # `np.ndarray` would accept a negative offset and pointers to objects.
        if (
            dtype.hasobject
            or min((ref.offset, *ref.shape)) < 0
            or (end > self.size_bytes and end > self._grown_size(end))
        ):
            raise WireError(f"array {ref} is no part of a shared memory of {self.size_bytes} bytes")
        return np.ndarray(ref.shape, dtype, self._map, ref.offset)

    def memory(self, offset: int, nbytes: int) -> Array:
        """Return a range of the arena as one uint8 array, which is the `base` of its slices.

        Raises:
            WireError: the range lies outside the arena.
        """
        end = offset + nbytes
        if offset < 0 or (end > self.size_bytes and end > self._grown_size(end)):
            raise WireError(
                f"bytes {offset} to {end} lie outside of a shared memory of {self.size_bytes} bytes"
            )
        return np.frombuffer(self._map, dtype=np.uint8, count=nbytes, offset=offset)

    def free(self, offset: int) -> None:
        """Free the record that starts at `offset`; raises KeyError if there is none."""
        with self._lock:
            key, record = self._allocated.pop(offset)
            self.used_bytes -= record.nbytes
            self._freed_records.setdefault(key, []).append(record)

    def close(self) -> None:
        """Close the descriptor. Existing views stay valid."""
        with self._lock:
            if self.fd < 0:
                return
            if (size := os.fstat(self.fd).st_size) > self.size_bytes:
                with suppress(OSError):  # the allocating process could not map it either
                    self._remap(size)  # later messages may refer to arrays in the added part
            fd, self.fd = self.fd, -1
            os.close(fd)

    def _new_record(self, key: Layouts) -> Record:
        """Allocate a record with a layout that no freed record has."""
        names = [_dtype_name(dtype) for dtype, _ in key]
        sizes = [_aligned(dtype.itemsize * math.prod(shape)) for dtype, shape in key]
        nbytes = max(sum(sizes), ALIGNMENT)
        offset = self._find_room(nbytes)
        refs, at = [], offset
        for name, (_, shape), size in zip(names, key, sizes, strict=True):
            refs.append(ArrayRef(name, tuple(shape), at))
            at += size
        return Record(offset, nbytes, tuple(refs))

    def _find_room(self, nbytes: int) -> int:
        # No freed record has the wanted layout: make their ranges free for any layout.
        for records in self._freed_records.values():
            for record in records:
                insort(self._free_ranges, (record.offset, record.nbytes))
        self._freed_records.clear()
        self._merge()
        fits = (i for i, (_, room) in enumerate(self._free_ranges) if room >= nbytes)
        index = next(fits, None)
        if index is None:
            self._grow(nbytes)
            index = len(self._free_ranges) - 1
        offset, room = self._free_ranges[index]
        if room == nbytes:
            del self._free_ranges[index]
        else:
            self._free_ranges[index] = (offset + nbytes, room - nbytes)
        return offset

    def _grow(self, nbytes: int) -> None:
        if self.fd < 0:  # the descriptor's former number may belong to another file now
            raise OSError(errno.EBADF, "this shared memory is closed")
        step = max(nbytes, GROWTH_BYTES, self.size_bytes // 2)
        step = -(-step // mmap.PAGESIZE) * mmap.PAGESIZE
        start = self.size_bytes
        # The file is larger, and cannot shrink, if an earlier growth could not be mapped.
        if os.fstat(self.fd).st_size < start + step:
            # A process has to map the whole file to attach. Before the file grows, test whether
            # the system permits a mapping of the new size.
            mmap.mmap(-1, start + step, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ).close()
            os.ftruncate(self.fd, start + step)
        self._remap(start + step)
        self._free_ranges.append((start, step))
        self._merge()

    def _grown_size(self, end: int) -> int:
        """Map what the allocating process has added to the file; return the mapped bytes."""
        if self.fd >= 0:
            # fstat with the lock held: else a slow thread could map an older, smaller size.
            with self._lock:
                size = os.fstat(self.fd).st_size if self.fd >= 0 else 0
                if self.size_bytes < end <= size:
                    try:
                        self._remap(size)
                    except OSError:  # the allocating process could not map all of it either
                        self._remap(end)
        return self.size_bytes

    def _remap(self, size: int) -> None:
        # Not mmap.resize: arrays that view the old mapping keep it alive; both map the same pages.
        self._map = mmap.mmap(self.fd, size)
        self.size_bytes = size

    def _merge(self) -> None:
        merged: list[tuple[int, int]] = []
        for offset, room in self._free_ranges:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((offset, room))
        self._free_ranges = merged


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@lru_cache(maxsize=64)
def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype that an `ArrayRef` names; import ml_dtypes only if numpy lacks the dtype."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # registers bfloat16 and others with numpy

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a name for `dtype_named`; extension types such as bfloat16 only have `dtype.name`."""
    if dtype.hasobject or dtype.names is not None:
        raise WireError(f"arrays of dtype {dtype} cannot lie in shared memory")
    return dtype.name if dtype.kind == "V" else dtype.str
