"""Where checkpoints lie: what a folder and an object store have to be able to do.

Names of their folders:

| name | of |
|---|---|
| `step-000000000100-g3-67ab12cd03f1` | step 100, saved by generation 3 of an elastic training |
| `step-000000000100` | step 100, saved by a program that uses `Repository` itself |
| `step-000000000100-67ab12cd03f1` | the same: the name was taken, or the store cannot rename |

The last part is a token: the second in which the save began, in 8 hexadecimal digits, and 4 random
ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ...runtime.errors import UsageError

Piece = bytes | memoryview

#: What is written and added to a checksum at once: its thread lets others run in between.
PIECE_BYTES: Final = 8 << 20
#: What a killed writer left is removed when it is so old, where nothing tells sooner that it died.
LEFTOVER_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: its length and the SHA-256 of its bytes, in hexadecimal."""

    nbytes: int
    sha256: str


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


_NAME: Final = re.compile(
    r"step-([0-9]{12})(?:-g([0-9]{1,12})(?=-))?(?:-([0-9a-f]{8})[0-9a-f]{4})?", re.ASCII
)
MOST_STEPS: Final = 10**12


def name_of(step: int) -> str:
    """The folder's name; `step` is below `MOST_STEPS`."""
    return f"step-{step:012d}"


def unique_name_of(step: int, generation: int | None = None) -> str:
    """A name that hardly any other process chooses in the same second: one in 65,536 does."""
    saved_by = "" if generation is None else f"-g{generation}"
    return f"{name_of(step)}{saved_by}-{token()}"


def token() -> str:
    """12 hexadecimal digits: the current second, and four random ones."""
    return f"{int(time.time()) & 0xFFFFFFFF:08x}{os.urandom(2).hex()}"


def step_of(name: str) -> int | None:
    """The step of the checkpoint in a folder of that name; None: the name is of something else."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def generation_of(name: str) -> int | None:
    """The generation that saved it; None: a program without generations."""
    found = _NAME.fullmatch(name)
    return None if found is None or found[2] is None else int(found[2])


def begun_s(name: str) -> int | None:
    """When the save into a folder with a token began, in seconds since the epoch."""
    found = _NAME.fullmatch(name)
    return None if found is None or found[3] is None else int(found[3], 16)
