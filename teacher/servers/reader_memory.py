"""The memory of a reader on this host, whose batches a teacher reads in place.

The memory is a file without a name (`proto/shared_buffer.py`); its key names a process and one of
its descriptors. Only what the kernel lists as memory of a reader is opened, because opening another
file can have side effects. It must belong to the user at the other end of the Unix socket, and be
sealed against shrinking: to read a mapping beyond the end of its file is a SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from typing import Final

from ...proto.datatypes import quoted
from ...proto.shared_buffer import GENERATION_BYTES, BufferLocation, SharedBuffer, descriptor_of
from ...runtime.errors import RequestRefused, RetryableError
from .shared_segment import check_user

#: The kernel's name for memory files of our readers.
_READER_MEMORY: Final = f"/memfd:{SharedBuffer.NAME} "


class ReaderMemory:
    """Memory of a reader, mapped for one connection.

    Args:
        key: as `SharedBuffer.key`.
        nbytes: size of the memory.
        uid: the user at the other end of the Unix socket; None if the connection is no Unix socket.

    Raises:
        RequestRefused: the key names no memory of a reader, it belongs to another user, it is
            smaller, or it may shrink.
    """

    __slots__ = ("_mapped",)

    def __init__(self, key: str, nbytes: int, uid: int | None) -> None:
        if uid is None:
            raise RequestRefused("the memory of a reader is read only over the Unix socket")
        if (descriptor := descriptor_of(key)) is None:
            raise RequestRefused(f"{quoted(key)} is not the key of a reader's memory")
        try:
            fd = _open(*descriptor)
            try:
                check_user(key, os.fstat(fd).st_uid, uid)
                is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
                # The size is read after the seal: before it was sealed, it may have shrunk.
                if not is_sealed or not 0 < nbytes <= os.fstat(fd).st_size:
                    raise RequestRefused("memory that is too small or may shrink is not read")
                self._mapped = memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ))
            finally:
                os.close(fd)
        except OSError as error:
            raise RequestRefused(f"memory {quoted(key)} cannot be read: {error.strerror}") from None

    def read(self, location: BufferLocation, nbytes: int) -> memoryview:
        """Return `nbytes` bytes without a copy; call `check` after using them.

        Raises:
            RequestRefused: the bytes or their generation are not within the memory.
            RetryableError: the location belongs to another request now.
        """
        end = location.offset + nbytes
        generation_end = location.generation_offset + GENERATION_BYTES
        if not generation_end <= location.offset <= end <= len(self._mapped):
            raise RequestRefused(f"{location} with {nbytes} bytes is not within the memory")
        self.check([location])
        return self._mapped[location.offset : end]

    def check(self, locations: Iterable[BufferLocation]) -> None:
        """Raise RetryableError if any of these locations belongs to another request now."""
        for location in locations:
            at = location.generation_offset
            found = int.from_bytes(self._mapped[at : at + GENERATION_BYTES], "little")
            if found != location.generation:
                raise RetryableError(
                    f"the location at {location.offset} belongs to another request now: its "
                    f"generation is {found}, the request names {location.generation}"
                )


def _open(pid: int, fd: int) -> int:
    """Open descriptor `fd` of a process; check first that it is the memory of a reader."""
    path_fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        link = f"/proc/self/fd/{path_fd}"
        if not os.readlink(link).startswith(_READER_MEMORY):
            raise RequestRefused(f"descriptor {fd} of process {pid} is not the memory of a reader")
        return os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(path_fd)
