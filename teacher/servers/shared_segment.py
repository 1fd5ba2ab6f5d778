"""A shared-memory object of a caller: which objects are opened, and how they are read and written.

A key names a file of `/dev/shm` with the prefix `PREFIX`, or the memory file of one of our readers,
by a process and its descriptor. Nothing else is opened, in particular no file that has side effects
when it is opened. An object is accessed through its descriptor. It is mapped only if it is sealed
against shrinking; then it can be read in place.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from ...proto.datatypes import quoted
from ...proto.shared_buffer import (
    GENERATION,
    GENERATION_BYTES,
    BufferRef,
    SharedBuffer,
    descriptor_of,
)
from ...runtime.errors import RequestRefused, RetryableError

#: Prefix of the names of objects that a teacher opens.
PREFIX: Final = "edl-"
#: The folder of shared-memory objects.
FOLDER: Final = Path("/dev/shm")
#: The kernel's name for memory files of our readers.
_READER_MEMORY: Final = f"/memfd:{SharedBuffer.NAME} "
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_object(key: str) -> int:
    """Open the object `key` for reading and return the descriptor.

    Raises:
        RequestRefused: there is no such object, or it may not be opened.
    """
    name = _without_slash(key)
    if not name.startswith(PREFIX) or "/" in name or "\0" in name:
        raise RequestRefused(
            f"{quoted(key)} is not a valid name of shared memory: it must begin with "
            f"{PREFIX!r} and have no '/' in it"
        )
    descriptor = descriptor_of(name)
    try:
        if descriptor is None:
            return os.open(os.fsencode(FOLDER / name), _READ | os.O_NOFOLLOW)
        return _open_descriptor(*descriptor)
    except (OSError, UnicodeEncodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "no such name"
        raise RequestRefused(f"shared memory {quoted(key)} cannot be opened: {why}") from None


def is_reader_memory(key: str) -> bool:
    """Whether a key names the memory file of a reader, in which locations are reused."""
    return descriptor_of(_without_slash(key)) is not None


def _without_slash(key: str) -> str:
    return key.removeprefix("/")


def _open_descriptor(pid: int, fd: int) -> int:
    """Open descriptor `fd` of a process; check first that it is the memory of a reader."""
    path_fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        link = f"/proc/self/fd/{path_fd}"
        if not os.readlink(link).startswith(_READER_MEMORY):
            raise RequestRefused(f"descriptor {fd} of process {pid} is not the memory of a reader")
        return os.open(link, _READ)
    finally:
        os.close(path_fd)


_GENERATION: Final = struct.Struct("<Q")
#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi4x")


class SharedSegment:
    """A range of a shared-memory object. The object stays open while this instance is referenced.

    Args:
        key: the name of the object, as in `open_object`.
        offset: start of the range, in bytes.
        nbytes: its size.

    Attributes:
        from_reader: whether it is memory of one of our readers, in which locations are reused.
        uid: the user that owns the object.
        used_s: time of its last use, on the clock of `SharedMemoryRegions`.

    Raises:
        RequestRefused: there is no such object, it is too small, or the range is empty.
    """

    __slots__ = ("_fd", "_mapped", "from_reader", "key", "nbytes", "offset", "uid", "used_s")

    def __init__(self, key: str, offset: int, nbytes: int) -> None:
        self._fd, self.used_s = -1, 0.0
        self.key, self.offset, self.nbytes = key, offset, nbytes
        self.from_reader = is_reader_memory(key)
        self._fd = open_object(key)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise RequestRefused(f"{quoted(key)} is no shared-memory object")
        self.uid = status.st_uid
        if nbytes < 1:
            raise RequestRefused(f"a region of {quoted(key)} needs at least 1 byte: set byte_size")
        if offset + nbytes > status.st_size:
            raise RequestRefused(
                f"bytes {offset} to {offset + nbytes} are not all within {quoted(key)}, which has "
                f"{status.st_size} bytes"
            )
        self._mapped = _map_if_sealed(self._fd, offset + nbytes)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def unlinked(self) -> bool:
        """Whether the object has no name (any more), so that only its users keep it alive.

        The memory of our readers never has a name.
        """
        return os.fstat(self._fd).st_nlink == 0

    def check_user(self, uid: int) -> None:
        """Raise RequestRefused unless the object belongs to this user, or the user is root."""
        if uid not in (0, self.uid):
            raise RequestRefused(
                f"{quoted(self.key)} belongs to user {self.uid}; the caller is user {uid}"
            )

    def read(self, ref: BufferRef) -> memoryview:
        """Copy the bytes at `ref`.

        Raises:
            RequestRefused: the location is not within the range, the object has shrunk, or it is
                memory of a reader and the location has no generation.
            RetryableError: the location belongs to another request now, or the system cannot read
                it, for example for lack of memory.
        """
        at = self._start(ref)
        self.check(ref)
        copy = self._copy(at, ref.nbytes)
        self.check(ref)
        return copy

    def read_in_place(self, ref: BufferRef) -> memoryview | None:
        """Return the bytes at `ref` without a copy; call `check` after using them.

        Returns:
            None if that is impossible: the object may shrink, or the location has no generation.

        Raises:
            RequestRefused: the location is not within the range.
            RetryableError: the location belongs to another request now.
        """
        if self._mapped is None or ref.generation is None:
            return None
        at = self._start(ref)
        self.check(ref)
        return self._mapped[at : at + ref.nbytes]

    def check(self, ref: BufferRef) -> None:
        """Raise RetryableError if the location belongs to another request now."""
        if ref.generation is None:
            return
        at = self.offset + ref.generation_at
        mapped = self._mapped
        raw = os.pread(self._fd, GENERATION_BYTES, at) if mapped is None else mapped[at:]
        generation = _GENERATION.unpack_from(raw)[0] if len(raw) >= GENERATION_BYTES else None
        if generation != ref.generation:
            raise RetryableError(
                f"the location at {ref.offset} of region {quoted(ref.region)} belongs to another "
                f"request now: its generation is {generation}, the request names {ref.generation}"
            )

    def write(self, ref: BufferRef, data: memoryview) -> None:
        """Write `data` at `ref`.

        Raises:
            RequestRefused: it does not fit, the location is not within the range, or the object has
                shrunk, belongs to a reader, or may not be written by this process.
            RetryableError: the location belongs to another request now, its owner is reusing it, or
                the system cannot write it, for example for lack of memory.
        """
        if self.from_reader:
            raise RequestRefused(
                f"region {quoted(ref.region)} is memory of a reader, into which teachers do not "
                "write: name no location for this output, and the answer will contain it"
            )
        if len(data) > ref.nbytes:
            raise RequestRefused(
                f"an output of {len(data)} bytes does not fit into the {ref.nbytes} of its location"
            )
        at = self._start(ref)
        with self._writable() as fd:
            if ref.generation is not None:
                _lock(fd, self.offset + ref.generation_at)  # until `fd` is closed
                self.check(ref)
            self._check_size(at + len(data))
            while data:
                try:
                    done = os.pwrite(fd, data, at)
                except OSError as error:
                    raise RetryableError(
                        f"{quoted(self.key)} cannot be written: {error.strerror}"
                    ) from None
                data, at = data[done:], at + done

    def _start(self, ref: BufferRef) -> int:
        """Return the start of `ref` in the object; check that the object is large enough."""
        if self.from_reader and ref.generation is None:
            raise RequestRefused(
                f"region {quoted(ref.region)} is memory of a reader: a location in it needs "
                f"its {GENERATION}"
            )
        if ref.offset + ref.nbytes > self.nbytes:
            raise RequestRefused(
                f"bytes {ref.offset} to {ref.offset + ref.nbytes} are not all within the "
                f"{self.nbytes} of region {quoted(ref.region)}"
            )
        at = self.offset + ref.offset
        self._check_size(at + ref.nbytes)
        return at

    def _check_size(self, end: int) -> None:
        """Raise RequestRefused if the object has shrunk; a mapped one cannot shrink."""
        if self._mapped is None and (size := os.fstat(self._fd).st_size) < end:
            raise self._shrunk(end, size)

    def _shrunk(self, end: int, size: int) -> RequestRefused:
        return RequestRefused(
            f"{quoted(self.key)} has become smaller: the request needs {end} bytes, "
            f"the object has {size}"
        )

    def _copy(self, at: int, nbytes: int) -> memoryview:
        """Read bytes by `preadv`: if the object is truncated, this is an error, not a SIGBUS."""
        copy = np.empty(nbytes, np.uint8).data
        done = 0
        while done < nbytes:
            try:
                count = os.preadv(self._fd, [copy[done:]], at + done)
            except OSError as error:
                raise RetryableError(
                    f"{quoted(self.key)} cannot be read: {error.strerror}"
                ) from None
            if count == 0:
                raise self._shrunk(at + nbytes, at + done)
            done += count
        return copy.toreadonly()

    @contextmanager
    def _writable(self) -> Iterator[int]:
        """Open a second descriptor for writing, which owns the locks that are set with it."""
        try:
            fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RequestRefused(
                f"{quoted(self.key)} may not be written by user {os.geteuid()}: {error.strerror}"
            ) from None
        try:
            yield fd
        finally:
            os.close(fd)


def _map_if_sealed(fd: int, nbytes: int) -> memoryview | None:
    """Map an object that is sealed against shrinking; return None if it is not sealed."""
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        if os.fstat(fd).st_size < nbytes:  # it shrank before it was sealed
            return None
        return memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ))
    except OSError:  # no support for seals, or no room for another mapping
        return None


def _lock(fd: int, at: int) -> None:
    """Lock the generation at `at`; raise RetryableError if it is locked."""
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, GENERATION_BYTES, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise RetryableError(
                "the location is being reused by its owner: send the request again"
            ) from None
        raise RetryableError(f"the location cannot be locked: {error.strerror}") from None
