"""Storage of checkpoints: the protocol of folders and object stores, and names of folders.

| name | checkpoint |
|---|---|
| `step-000000000100-g3-67ab12cd03f1` | step 100, saved by generation 3 of an elastic training |
| `step-000000000100` | step 100, saved by a program that uses `Repository` directly |
| `step-000000000100-67ab12cd03f1` | the same, if the name was taken or the store cannot rename |

The last part is a token: the second of the save, in 8 hexadecimal digits, and 4 random digits.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ...runtime.errors import CheckpointUnavailable, EdlError, UsageError

Piece = bytes | memoryview

#: Bytes that are written and added to a checksum at once; other threads run in between.
PIECE_BYTES: Final = 8 << 20
#: A save removes the folders of unfinished saves that are older than this, in seconds. Where locks
#: work, it removes those of dead writers at any age.
LEFTOVER_S: Final = 24 * 3600.0
#: Prefix of the file by which a job claims a place.
CLAIM: Final = "JOB-"
#: errno of writes: the disk or a quota is full, or the process's limit of file sizes is reached.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Length and SHA-256, in hexadecimal, of a written file."""

    nbytes: int
    sha256: str


class Draft(Protocol):
    """A checkpoint that is being written; it becomes visible by `commit`."""

    def write(self, file: str, pieces: Iterable[Piece]) -> FileDigest:
        """Write one file. Raises CheckpointUnavailable."""

    def commit(self, manifest: bytes) -> str:
        """Turn the draft into a checkpoint atomically; return its name.

        Raises CheckpointUnavailable.
        """

    def abort(self) -> None:
        """Remove all written files; never raises."""


class Storage(Protocol):
    """Storage of checkpoints at one place; each checkpoint is a folder.

    All methods but `tidy`, `unclaim`, `lock` and `location` raise CheckpointUnavailable.

    Attributes:
        url: the place, as messages name it.
    """

    url: str

    def names(self) -> list[str]:
        """Return the names of all folders of checkpoints, whole or not; [] if there is none yet."""

    def draft(self, step: int, nbytes: int, name: str = "") -> Draft:
        """Begin a checkpoint of about `nbytes` bytes in the folder `name`; "": a new name."""

    def reading(self, name: str, file: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a file of a checkpoint for reading.

        Raises:
            FileNotFoundError: there is no such file.
            CheckpointDamaged: the disk reports a read error.
        """

    def add(self, name: str, file: str, data: bytes) -> None:
        """Add a small file to a checkpoint, atomically."""

    def size(self, name: str, file: str) -> int | None:
        """Return the bytes of a file of a checkpoint; None if there is no such file."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint; first it stops counting as one, then its files are deleted."""

    def tidy(self) -> None:
        """Remove the folders of saves that a dead writer left unfinished; never raises."""

    def claims(self) -> list[str]:
        """Return the names of the jobs that claim the place."""

    def claim(self, job: str) -> None:
        """Claim the place for a job, by the file `JOB-NAME`."""

    def unclaim(self, job: str) -> None:
        """Remove the claim of a job; never raises."""

    def lock(self, shared: bool) -> BinaryIO | None:
        """Lock the place until the returned file is closed, or the process ends.

        Returns None if the place cannot be locked.

        Raises:
            BlockingIOError: another process has the lock, which is not `shared` by both.
        """

    def location(self, name: str) -> str:
        """Return the path or URL of a checkpoint, for `open_checkpoint`."""


def open_storage(url: str) -> Storage:
    """Return the storage of a path or URL; this creates nothing there.

    Raises:
        UsageError: the protocol is unknown, its package is missing, or the path is unsuitable.
        CheckpointUnavailable: the file system behind the URL cannot be opened.
    """
    if not url:
        raise UsageError("checkpoints need a place: a folder, or a URL such as s3://bucket/job")
    path = url.removeprefix("file://")
    if "://" not in path:
        from .local_storage import LocalStorage

        return LocalStorage(Path(path).expanduser().absolute())
    from .fsspec_storage import FsspecStorage

    return FsspecStorage(url)


@contextlib.contextmanager
def raise_unavailable(
    message: str, kind: type[Exception] = OSError, passes: type[Exception] = EdlError
) -> Iterator[None]:
    """Convert exceptions of `kind` to CheckpointUnavailable; EdlErrors and `passes` pass unchanged.

    The text of the error is `message` and the reason.
    """
    try:
        yield
    except (EdlError, passes):
        raise
    except kind as error:
        number = getattr(error, "errno", None)
        full = number in _FULL
        advice = "; make room there, or keep fewer checkpoints" if full else ""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if number == errno.ENOSPC:
            reason = f"no room: {reason}"
        raise CheckpointUnavailable(f"{message}: {reason}{advice}", full) from error


def write_pieces(pieces: Iterable[Piece], write: Callable[[Piece], object]) -> FileDigest:
    """Pass `pieces` to `write`, cut to `PIECE_BYTES`; return length and checksum of all."""
    digest, nbytes = hashlib.sha256(), 0
    for piece in pieces:
        for begin in range(0, len(piece), PIECE_BYTES):
            part = piece[begin : begin + PIECE_BYTES]
            write(part)
            digest.update(part)
        nbytes += len(piece)
    return FileDigest(nbytes, digest.hexdigest())


_NAME: Final = re.compile(
    r"step-([0-9]{12})(?:-g([0-9]{1,12})(?=-))?(?:-([0-9a-f]{8})[0-9a-f]{4})?", re.ASCII
)
MOST_STEPS: Final = 10**12


def name_of(step: int) -> str:
    """Return the name of a folder; `step` must be below `MOST_STEPS`."""
    return f"step-{step:012d}"


def unique_name_of(step: int, generation: int | None = None) -> str:
    """Return a name with a token; two from the same second are equal with probability 1/65,536."""
    saved_by = "" if generation is None else f"-g{generation}"
    return f"{name_of(step)}{saved_by}-{token()}"


def token() -> str:
    """Return 12 hexadecimal digits: the current second, and 4 random digits."""
    return f"{int(time.time()) & 0xFFFFFFFF:08x}{os.urandom(2).hex()}"


def step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint's folder; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def generation_of(name: str) -> int | None:
    """Return the generation in the name of a checkpoint's folder; None if it has none."""
    match = _NAME.fullmatch(name)
    return None if match is None or match[2] is None else int(match[2])


def begun_s(name: str) -> int | None:
    """Return the time in the token of a folder's name, in seconds since 1970; None: no token."""
    match = _NAME.fullmatch(name)
    return None if match is None or match[3] is None else int(match[3], 16)
