"""Where checkpoints lie: what a folder and an object store have to be able to do."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ...errors import UsageError
from .manifest import Written

Piece = bytes | memoryview

#: What is written and added to a checksum at once: its thread lets others run in between.
PIECE_BYTES: Final = 8 << 20
#: What a killed writer left is removed when it is so old, where nothing tells sooner that it died.
LEFTOVER_S: Final = 24 * 3600.0


class Draft(Protocol):
    """A checkpoint that is being written, which nobody takes for one before `commit`."""

    def write(self, file: str, pieces: Iterable[Piece]) -> Written:
        """Write one file. Raises CheckpointUnavailable."""

    def commit(self, manifest: bytes) -> str:
        """Make it a checkpoint, all at once; returns its name. Raises CheckpointUnavailable."""

    def abort(self) -> None:
        """Remove what was written; never raises."""


class Lock(Protocol):
    """A lock on a place; it ends with the process, too."""

    def close(self) -> None:
        """Give the lock back."""


class Files(Protocol):
    """Folders of checkpoints at one place. All methods raise CheckpointUnavailable.

    Attributes:
        url: the place, as messages name it.
    """

    url: str

    def names(self) -> list[str]:
        """Of all folders of checkpoints, whole or not; none where there is no such place yet."""

    def draft(self, step: int, nbytes: int, name: str = "") -> Draft:
        """Begin a checkpoint of a step that takes about so many bytes; `name`: of its folder."""

    def reading(self, name: str, file: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file of a checkpoint, to read within the `with`.

        Raises:
            FileNotFoundError: there is none.
            CheckpointDamaged: the disk cannot read it any more.
        """

    def add(self, name: str, file: str, data: bytes) -> None:
        """Add a small file to a checkpoint, all at once."""

    def size(self, name: str, file: str) -> int | None:
        """Bytes of a file of a checkpoint; None where there is none."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint: at once it is none, then its bytes go."""

    def tidy(self) -> None:
        """Remove what writers have left that were killed."""

    def lock(self) -> Lock | None:
        """Lock the place for this process; None where there are no locks.

        Raises:
            BlockingIOError: another process has the lock.
        """

    def location(self, name: str) -> str:
        """The address of a checkpoint, which `open_checkpoint` takes."""


def open_files(url: str) -> Files:
    """The place that a path or a URL names; nothing is made before the first draft.

    Raises:
        UsageError: no such protocol, or what reads it is not installed.
    """
    if not url:
        raise UsageError("checkpoints need a place: a folder, or a URL as s3://bucket/job")
    path = url.removeprefix("file://")
    if "://" not in path:
        from .files_local import LocalFiles

        return LocalFiles(Path(path).expanduser().absolute())
    from .files_fsspec import FsspecFiles

    return FsspecFiles(url)


def written(pieces: Iterable[Piece], write: Callable[[Piece], object]) -> Written:
    """Hand `pieces` to `write`, cut to `PIECE_BYTES`; the length and the checksum of all."""
    digest, nbytes = hashlib.sha256(), 0
    for piece in _cut(pieces):
        write(piece)
        digest.update(piece)
        nbytes += len(piece)
    return Written(nbytes, digest.hexdigest())


def _cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        for begin in range(0, len(piece), PIECE_BYTES):
            yield piece[begin : begin + PIECE_BYTES]
