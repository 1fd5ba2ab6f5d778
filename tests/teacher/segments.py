"""Named shared memory for tests, and what its owner does with it."""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from edl.teacher.servers.shared_segment import FOLDER, PREFIX


class Object:
    """One shared-memory object, in the hands of its owner."""

    def __init__(self, nbytes: int, folder: Path = FOLDER) -> None:
        self.key = f"{PREFIX}test-{uuid.uuid4().hex}"
        self.path: Path = folder / self.key
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self._fd, nbytes)

    def put(self, data: bytes, at: int = 0) -> None:
        os.pwrite(self._fd, data, at)

    def get(self, nbytes: int, at: int = 0) -> bytes:
        return os.pread(self._fd, nbytes, at)

    def resize(self, nbytes: int) -> None:
        os.ftruncate(self._fd, nbytes)

    def mark(self, generation: int, at: int) -> None:
        """Say whose the place at `at` is, whatever anybody does there."""
        self.put(struct.pack("<Q", generation), at - 8)

    @contextmanager
    def taking_back(self, at: int) -> Iterator[bool]:
        """Hold the lock of the place at `at`, if nobody writes there: whether it was got."""
        fd = os.open(self.path, os.O_RDWR)
        try:
            flock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at - 8, 8, 0)
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, flock)
                got = True
            except BlockingIOError:
                got = False
            yield got
        finally:
            os.close(fd)

    def take_back(self, generation: int, at: int) -> bool:
        """Give the place at `at` to another batch; False where a teacher may be writing there."""
        with self.taking_back(at) as got:
            if got:
                self.mark(generation, at)
            return got

    def close(self) -> None:
        self.path.unlink(missing_ok=True)  # before, so that whoever looks sees it in use
        os.close(self._fd)


@contextmanager
def shared(nbytes: int, folder: Path = FOLDER) -> Iterator[Object]:
    """An object that is gone at the end of the `with`."""
    with closing(Object(nbytes, folder)) as found:
        yield found
