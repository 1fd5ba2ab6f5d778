"""One shared-memory object of a caller: which are opened, and how one is read and written.

A key names a file of `/dev/shm` that begins with `PREFIX`; or a memory file of one of our readers,
which has no name, by a process that has it open. Nothing else is opened, whatever the key says, and
nothing that could act on being opened. An object is read and written through its descriptor. It is
mapped only where the kernel keeps it from becoming smaller: then it can be read in place.
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

from ...errors import RequestRefused, RetryableError
from ...proto.datatypes import quoted
from ...proto.shared_buffer import (
    GENERATION,
    GENERATION_BYTES,
    BufferRef,
    SharedBuffer,
    descriptor_of,
)

#: What the names of objects begin with that a teacher opens.
PREFIX: Final = "edl-"
#: Where shared-memory objects are.
FOLDER: Final = Path("/dev/shm")
#: Memory files that are opened, as the kernel calls them.
_READER_MEMORY: Final = f"/memfd:{SharedBuffer.NAME} "
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_object(key: str) -> int:
    """A descriptor of the object `key`, for reading.

    Raises:
        RequestRefused: there is no such object, or it is none that is opened here.
    """
    name = _without_slash(key)
    if not name.startswith(PREFIX) or "/" in name or "\0" in name:
        raise RequestRefused(
            f"{quoted(key)} is no name of shared memory that is taken here: one begins with "
            f"{PREFIX!r} and has no '/' in it"
        )
    held = descriptor_of(name)
    try:
        return _open_named(name) if held is None else _open_descriptor(*held)
    except (OSError, UnicodeEncodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "no such name"
        raise RequestRefused(f"shared memory {quoted(key)} cannot be opened: {why}") from None


def is_reader_memory(key: str) -> bool:
    """Whether a key is that of a reader's memory file, in which places change hands."""
    return descriptor_of(_without_slash(key)) is not None


def _without_slash(key: str) -> str:
    return key.removeprefix("/")


def _open_named(name: str) -> int:
    return os.open(os.fsencode(FOLDER / name), _READ | os.O_NOFOLLOW)


def _open_descriptor(pid: int, fd: int) -> int:
    """What a process has open as `fd`: first without opening it, to see what it is."""
    found = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        link = f"/proc/self/fd/{found}"
        if not os.readlink(link).startswith(_READER_MEMORY):
            raise RequestRefused(f"descriptor {fd} of process {pid} is no memory that is lent")
        return os.open(link, _READ)
    finally:
        os.close(found)


_GENERATION: Final = struct.Struct("<Q")
#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi4x")


class SharedSegment:
    """A piece of a shared-memory object, for as long as anybody refers to this.

    Args:
        key: the object's name, as `open_object` takes it.
        offset: where the piece begins in it, in bytes.
        nbytes: of the piece.

    Attributes:
        from_reader: it is memory of one of our readers, in which places change hands.
        uid: the user to whom the object belongs.

    Raises:
        RequestRefused: there is no such object, or it is too small.
    """

    __slots__ = ("_fd", "_mapped", "from_reader", "key", "nbytes", "offset", "uid")

    def __init__(self, key: str, offset: int, nbytes: int) -> None:
        self._fd = -1
        self.key, self.offset, self.nbytes = key, offset, nbytes
        self.from_reader = is_reader_memory(key)
        self._fd = open_object(key)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise RequestRefused(f"{quoted(key)} is no shared-memory object")
        self.uid = found.st_uid
        if nbytes < 1 or offset + nbytes > found.st_size:
            raise RequestRefused(
                f"bytes {offset} to {offset + nbytes} are no piece of {quoted(key)}, which has "
                f"{found.st_size}"
            )
        self._mapped = _mapped(self._fd, offset + nbytes)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def unlinked(self) -> bool:
        """Whether its name is gone, so that it lives by its users only."""
        return os.fstat(self._fd).st_nlink == 0

    def check_user(self, uid: int) -> None:
        """Raises RequestRefused where the object is not for this user; root may have any."""
        if uid not in (0, self.uid):
            raise RequestRefused(
                f"{quoted(self.key)} belongs to user {self.uid}; this is for user {uid}"
            )

    def read(self, ref: BufferRef) -> memoryview:
        """A copy of what lies at `ref`.

        Raises:
            RequestRefused: the place is not within the piece, the object has become smaller, or it
                is lent and nothing says whose the place is.
            RetryableError: the place belongs to another request by now; or there is no memory.
        """
        at = self._start(ref)
        self.check(ref)
        copy = self._copy(at, ref.nbytes)
        self.check(ref)
        return copy

    def read_in_place(self, ref: BufferRef) -> memoryview | None:
        """What lies at `ref`, without a copy: the request's only if `check` says so afterwards.

        Returns:
            None where it cannot be: the object may become smaller, or nothing says whose it is.

        Raises:
            RequestRefused: the place is not within the piece.
            RetryableError: the place belongs to another request by now.
        """
        if self._mapped is None or ref.generation is None:
            return None
        at = self._start(ref)
        self.check(ref)
        return self._mapped[at : at + ref.nbytes]

    def check(self, ref: BufferRef) -> None:
        """Raises RetryableError when the place belongs to another request by now."""
        self._check_generation(self._fd, ref)

    def write(self, ref: BufferRef, data: memoryview) -> None:
        """Put `data` where `ref` begins.

        Raises:
            RequestRefused: it does not fit, the place is not within the piece, the object has
                become smaller, is lent, or may not be written by this process.
            RetryableError: the place belongs to another request by now, or somebody is about to
                take it; or there is no memory behind it.
        """
        if self.from_reader:
            raise RequestRefused(
                f"region {quoted(ref.region)} is lent memory, which is only read: name no place "
                "in it for an output, which then comes in the answer"
            )
        if len(data) > ref.nbytes:
            raise RequestRefused(
                f"an output of {len(data)} bytes does not fit into the {ref.nbytes} of its place"
            )
        at = self._start(ref)
        with self._writable() as fd:
            if ref.generation is not None:
                _lock(fd, self.offset + ref.generation_at)  # until `fd` is closed
                self._check_generation(fd, ref)
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
        """Where `ref` begins in the object, which is as large as it has to be."""
        if self.from_reader and ref.generation is None:
            raise RequestRefused(
                f"region {quoted(ref.region)} is lent memory: a place in it is named with its "
                f"{GENERATION}"
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
        """What is mapped has been found large enough, and cannot become smaller."""
        if self._mapped is None and (size := os.fstat(self._fd).st_size) < end:
            raise self._shrunk(end, size)

    def _shrunk(self, end: int, size: int) -> RequestRefused:
        return RequestRefused(
            f"{quoted(self.key)} has become smaller: byte {end} of it is meant, and it has {size}"
        )

    def _copy(self, at: int, nbytes: int) -> memoryview:
        """Bytes of the object; it is read, not mapped, so cutting it short harms nobody."""
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

    def _check_generation(self, fd: int, ref: BufferRef) -> None:
        if ref.generation is None:
            return
        at = self.offset + ref.generation_at
        raw = os.pread(fd, GENERATION_BYTES, at) if self._mapped is None else self._mapped[at:]
        found = _GENERATION.unpack_from(raw)[0] if len(raw) >= GENERATION_BYTES else None
        if found != ref.generation:
            raise RetryableError(
                f"the place at {ref.offset} of region {quoted(ref.region)} is not this "
                f"request's any more: its generation is {found}, {ref.generation} was named"
            )

    @contextmanager
    def _writable(self) -> Iterator[int]:
        """The object once more, to write to: locks belong to this opening of it alone."""
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


def _mapped(fd: int, nbytes: int) -> memoryview | None:
    """The object's bytes, where it is sealed against becoming smaller; None: it is not."""
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        if os.fstat(fd).st_size < nbytes:  # it was cut short before it was sealed
            return None
        return memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ))
    except OSError:  # it knows no seals, or there is no room for another mapping
        return None


def _lock(fd: int, at: int) -> None:
    """Keep everybody else from taking the generation at `at`, if nobody has it now."""
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, GENERATION_BYTES, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise RetryableError("the place is being taken back by its owner") from None
        raise RetryableError(f"the place cannot be locked: {error.strerror}") from None
