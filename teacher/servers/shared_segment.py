"""A shared-memory object of a caller: which objects are opened, and how they are read and written.

A key names a file of `/dev/shm` with the prefix `PREFIX`. Nothing else is opened, in particular no
file that has side effects when it is opened. An object is accessed through its descriptor, never
mapped: if it is truncated, this causes an error and no SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from ...proto.datatypes import quoted
from ...proto.shared_buffer import GENERATION_BYTES, BufferRef
from ...runtime.errors import RequestRefused, RetryableError

#: Prefix of the names of objects that a teacher opens.
PREFIX: Final = "edl-"
#: The folder of shared-memory objects.
FOLDER: Final = Path("/dev/shm")


def open_object(key: str) -> int:
    """Open the object `key` for reading and return the descriptor.

    Raises:
        RequestRefused: there is no such object, or it may not be opened.
    """
    name = key.removeprefix("/")
    if not name.startswith(PREFIX) or "/" in name or "\0" in name:
        raise RequestRefused(
            f"{quoted(key)} is not a valid name of shared memory: it must begin with "
            f"{PREFIX!r} and have no '/' in it"
        )
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        return os.open(os.fsencode(FOLDER / name), flags)
    except (OSError, UnicodeEncodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "no such name"
        raise RequestRefused(f"shared memory {quoted(key)} cannot be opened: {why}") from None


def check_user(key: str, owner_uid: int, uid: int) -> None:
    """Raise RequestRefused unless the user `uid` owns the object, or is root."""
    if uid not in (0, owner_uid):
        raise RequestRefused(f"{quoted(key)} belongs to user {owner_uid}; the caller is user {uid}")


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
        uid: the user that owns the object.
        used_s: time of its last use, on the clock of `SharedMemoryRegions`.

    Raises:
        RequestRefused: there is no such object, it is too small, or the range is empty.
    """

    __slots__ = ("_fd", "key", "nbytes", "offset", "uid", "used_s")

    def __init__(self, key: str, offset: int, nbytes: int) -> None:
        self._fd, self.used_s = -1, 0.0
        self.key, self.offset, self.nbytes = key, offset, nbytes
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

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def unlinked(self) -> bool:
        """Whether the object has no name any more, so that only its users keep it alive."""
        return os.fstat(self._fd).st_nlink == 0

    def read(self, ref: BufferRef) -> memoryview:
        """Copy the bytes at `ref`.

        Raises:
            RequestRefused: the location is not within the range, or the object has shrunk.
            RetryableError: the location belongs to another request now, or the system cannot read
                it, for example for lack of memory.
        """
        at = self._start(ref)
        self.check(ref)
        copy = self._copy(at, ref.nbytes)
        self.check(ref)
        return copy

    def check(self, ref: BufferRef) -> None:
        """Raise RetryableError if the location belongs to another request now."""
        if ref.generation is None:
            return
        raw = os.pread(self._fd, GENERATION_BYTES, self.offset + ref.generation_at)
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
                shrunk, or may not be written by this process.
            RetryableError: the location belongs to another request now, its owner is reusing it, or
                the system cannot write it, for example for lack of memory.
        """
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
        if ref.offset + ref.nbytes > self.nbytes:
            raise RequestRefused(
                f"bytes {ref.offset} to {ref.offset + ref.nbytes} are not all within the "
                f"{self.nbytes} of region {quoted(ref.region)}"
            )
        at = self.offset + ref.offset
        self._check_size(at + ref.nbytes)
        return at

    def _check_size(self, end: int) -> None:
        """Raise RequestRefused if the object has shrunk."""
        if (size := os.fstat(self._fd).st_size) < end:
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
