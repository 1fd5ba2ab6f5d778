"""Snapshots in memory that a node's supervisor owns, so they outlive the ranks that write them.

Each of the two slots is a memory file without a name (`memfd`). So a crash leaves no segment
behind, and a full `/dev/shm` does not matter. Ranks open the files through the supervisor's
file descriptors in `/proc`.

```
byte 0     header: magic, step, sequence, lengths, checksum of header and table
byte 4096  table: JSON of world, state, and the offset of each array
...        the arrays, each at a multiple of 64
```

A write removes the header first and writes the new one last. So a slot with a valid header is
complete. A writer that is killed during the copy spoils only its slot: the other one has the
previous snapshot. A process locks (`flock`) the slot that it uses; the lock ends with the process.
So the supervisor does not read a slot that is being written, and a rank does not overwrite a slot
that is being persisted. While one slot is persisted, each save overwrites the other one. If a
writer is killed then, the snapshot that is being persisted remains.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from ...proto.arena import ALIGNMENT, dtype_named
from ...proto.shared_buffer import descriptor_of, key_of
from ...runtime.errors import MemoryRefused, UsageError
from .contents import Array, Contents

SLOTS: Final = 2
#: Limit of attempts to read the slots while a writer switches between them.
_MAX_ATTEMPTS: Final = 10
_NAME: Final = "edl-snapshot"
_MAGIC: Final = b"EDLSNAP1"
_HEADER: Final = struct.Struct("<8s4QI")
_CRC: Final = struct.Struct("<I")
_TABLE_AT: Final = 4096


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a complete slot.

    Attributes:
        step: step of the snapshot.
        sequence: grows by one with each snapshot in either slot.
        table_bytes: length of the table.
        total_bytes: length of the slot, up to the end of the last array.
        table_crc: checksum of the table.
    """

    step: int
    sequence: int
    table_bytes: int
    total_bytes: int
    table_crc: int

    def pack(self) -> bytes:
        fields = (self.step, self.sequence, self.table_bytes, self.total_bytes, self.table_crc)
        packed = _HEADER.pack(_MAGIC, *fields)
        return packed + _CRC.pack(zlib.crc32(packed))

    @classmethod
    def unpack(cls, data: bytes) -> Self | None:
        """Parse what `pack` returned; None if it is invalid."""
        packed, crc = data[: _HEADER.size], data[_HEADER.size : _HEADER.size + _CRC.size]
        if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(packed):
            return None
        magic, *fields = _HEADER.unpack(packed)
        return cls(*fields) if magic == _MAGIC else None


class Slot:
    """A memory file, opened by this process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    @contextlib.contextmanager
    def locked(self, wait: bool = False) -> Iterator[bool]:
        """Lock the slot for the context. If it is locked elsewhere: wait, or yield False."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def header(self) -> Header | None:
        """Return the header; None if it is invalid. Without the lock, it may change at any time."""
        header = Header.unpack(os.pread(self.fd, _HEADER.size + _CRC.size, 0))
        return header if header and os.fstat(self.fd).st_size >= header.total_bytes else None

    def mapped(self, nbytes: int) -> mmap.mmap:
        """Return a mapping of at least `nbytes`; the file must have that length."""
        if self._map is None or len(self._map) < nbytes:
            # The old mapping is freed with its last view.
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)
        return self._map

    def grow(self, nbytes: int) -> None:
        """Allocate at least `nbytes`. Raises MemoryRefused if the system has too little."""
        size = os.fstat(self.fd).st_size
        missing = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE - size
        if missing > 0:
            try:
                os.posix_fallocate(self.fd, size, missing)
            except OSError as error:
                raise MemoryRefused(
                    f"a snapshot needs {nbytes / 2**20:,.1f} MiB of shared memory: "
                    f"{error.strerror}; give the node memory for two copies of the model and its"
                    " optimizer"
                ) from error

    def invalidate(self) -> None:
        """Remove the header; requires the lock."""
        os.pwrite(self.fd, bytes(_HEADER.size + _CRC.size), 0)

    def close(self) -> None:
        self._map = None
        os.close(self.fd)


class SnapshotOwner:
    """The supervisor's side: allocates the memory, and finds the newest complete snapshot.

    Attributes:
        keys: a key of each slot for `SnapshotWriter`; valid while this process lives.
    """

    def __init__(self) -> None:
        self._slots = [Slot(os.memfd_create(_NAME, os.MFD_CLOEXEC)) for _ in range(SLOTS)]
        self.keys = [key_of(os.getpid(), slot.fd) for slot in self._slots]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def newest_header(self) -> Header | None:
        """Return the header of the newest complete snapshot; None if there is none."""
        for _ in range(_MAX_ATTEMPTS):
            if headers := [header for header in map(Slot.header, self._slots) if header]:
                return max(headers, key=lambda header: header.sequence)
        return None

    def newest_step(self) -> int | None:
        """Return the step of the newest complete snapshot; None if there is none."""
        header = self.newest_header()
        return None if header is None else header.step

    @contextlib.contextmanager
    def newest(self) -> Iterator[tuple[Header, Contents] | None]:
        """Yield the newest complete snapshot, as views that stay valid in the context.

        Skips a slot that a writer has locked; yields None if no other slot has a snapshot.
        """
        for _ in range(_MAX_ATTEMPTS):
            found = [(header.sequence, slot) for slot in self._slots if (header := slot.header())]
            for _, slot in sorted(found, key=lambda pair: pair[0], reverse=True):
                with slot.locked() as locked:
                    header = slot.header() if locked else None
                    contents = None if header is None else _read(slot, header)
                    if header is not None and contents is not None:
                        yield header, contents
                        return
        yield None

    def close(self) -> None:
        """Free the memory; writers that have mapped it keep it until they end."""
        while self._slots:
            self._slots.pop().close()


class SnapshotWriter:
    """The rank's side: copies contents into one of the slots.

    Only one thread of one process may write at a time.

    Args:
        keys: keys of the `SnapshotOwner`.

    Raises:
        UsageError: a key is invalid, or the owner is gone.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise UsageError("no keys of memory for snapshots were given")
        self._slots: list[Slot] = []
        try:
            for key in keys:
                self._slots.append(Slot(_open(key)))
        except UsageError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise UsageError(
                f"the memory for snapshots {key!r} cannot be opened: {error.strerror}; it exists"
                " while its supervisor runs, for the same user on the same host"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, contents: Contents) -> None:
        """Copy `contents` into a slot.

        It overwrites the older slot, or the newer one while the older is being persisted. So it
        takes the time of one copy, without waiting for the disk.

        Raises:
            MemoryRefused: the system has too little memory. Both slots keep their snapshots.
        """
        sequences = [header.sequence if header else 0 for header in map(Slot.header, self._slots)]
        older, newer = sorted(range(len(self._slots)), key=sequences.__getitem__)
        # A reader locks at most one slot; if it switches slots meanwhile, wait for it.
        for number, wait in ((older, False), (newer, False), (older, True)):
            with self._slots[number].locked(wait) as locked:
                if locked:
                    _fill(self._slots[number], contents, max(sequences) + 1)
                    return
        raise AssertionError("a blocking lock was not acquired")

    def close(self) -> None:
        """Close the slots; the memory stays with its owner."""
        for slot in self._slots:
            slot.close()


def _open(key: str) -> int:
    descriptor = descriptor_of(key)
    if descriptor is None:
        raise UsageError(f"{key!r} is not a key of memory for snapshots")
    path = f"/proc/{descriptor[0]}/fd/{descriptor[1]}"
    if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
        raise UsageError(f"{key!r} names no memory for snapshots: its supervisor is gone")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _fill(slot: Slot, contents: Contents, sequence: int) -> None:
    """Copy `contents` into a locked slot: remove the header first, write the new one last.

    Offsets in the table count from the first array, as the table's length is not known before.
    """
    arrays: list[tuple[str, str, tuple[int, ...], int]] = []
    nbytes = 0
    for name, array in contents.tensors.items():
        arrays.append((name, array.dtype.name, array.shape, nbytes))
        nbytes += _aligned(array.nbytes)
    description = {"world": contents.world, "state": contents.state, "arrays": arrays}
    table = json.dumps(description).encode()
    arrays_begin = _aligned(_TABLE_AT + len(table))
    slot.grow(arrays_begin + nbytes)
    memory = slot.mapped(arrays_begin + nbytes)
    slot.invalidate()
    memory[_TABLE_AT : _TABLE_AT + len(table)] = table
    for name, _, _, offset in arrays:
        array = contents.tensors[name]
        np.copyto(_view(memory, array.dtype, array.shape, arrays_begin + offset), array)
    header = Header(contents.step, sequence, len(table), arrays_begin + nbytes, zlib.crc32(table))
    packed = header.pack()
    memory[: len(packed)] = packed


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _read(slot: Slot, header: Header) -> Contents | None:
    memory = slot.mapped(header.total_bytes)
    table = memory[_TABLE_AT : _TABLE_AT + header.table_bytes]
    if zlib.crc32(table) != header.table_crc:
        return None
    description = json.loads(table)
    arrays_begin = _aligned(_TABLE_AT + header.table_bytes)
    tensors = {
        name: _view(memory, dtype_named(dtype), tuple(shape), arrays_begin + offset)
        for name, dtype, shape, offset in description["arrays"]
    }
    return Contents(header.step, description["world"], tensors, description["state"])


def _view(memory: mmap.mmap, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    return (
        np.frombuffer(memory, np.uint8, count * dtype.itemsize, offset).view(dtype).reshape(shape)
    )
