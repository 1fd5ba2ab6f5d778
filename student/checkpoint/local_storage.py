"""Checkpoints in a folder of a file system: written to a temporary folder, synced, renamed.

So after a crash of the process or the machine, a checkpoint is complete or does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ...runtime.errors import CheckpointDamaged
from .checkpoint import MANIFEST
from .storage import (
    CLAIM,
    LEFTOVER_S,
    Draft,
    FileDigest,
    Piece,
    name_of,
    raise_unavailable,
    step_of,
    token,
    unique_name_of,
    write_pieces,
)

#: Prefix of folders that are not yet, or no longer, checkpoints.
_ASIDE: Final = ".aside-"
_LOCK: Final = ".lock"


class LocalStorage:
    """See `Storage`."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root

    def names(self) -> list[str]:
        return [name for name in self._listed() if step_of(name) is not None]

    def draft(self, step: int, nbytes: int, name: str = "") -> Draft:
        with raise_unavailable(f"cannot write checkpoints to {self.url}"):
            self._root.mkdir(parents=True, exist_ok=True)
            system = os.statvfs(self._root)
            free = system.f_bavail * system.f_frsize
            if free < nbytes:
                raise OSError(errno.ENOSPC, f"{_size(free)} are free, {_size(nbytes)} are needed")
            return _LocalDraft(self._root, step, name)

    @contextlib.contextmanager
    def reading(self, name: str, file: str) -> Iterator[BinaryIO]:
        path = self._root / name / file
        with raise_unavailable(f"cannot read {path}", passes=FileNotFoundError):
            try:
                with open(path, "rb") as opened:
                    yield opened
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise CheckpointDamaged(f"{file} cannot be read: {error.strerror}") from error

    def add(self, name: str, file: str, data: bytes) -> None:
        folder = self._root / name
        with raise_unavailable(f"cannot write {folder / file}"):
            part_path = folder / f".{file}-{token()}"
            try:
                with _synced(part_path) as opened:
                    opened.write(data)
                part_path.rename(folder / file)
            except OSError:
                part_path.unlink(missing_ok=True)
                raise
            _sync_folder(folder)

    def size(self, name: str, file: str) -> int | None:
        path = self._root / name / file
        with raise_unavailable(f"cannot look at {path}"), contextlib.suppress(FileNotFoundError):
            return path.stat().st_size
        return None

    def remove(self, name: str) -> None:
        with raise_unavailable(f"cannot remove {self._root / name}"):
            aside = self._root / f"{_ASIDE}{token()}"
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                (self._root / name).rename(aside)
                shutil.rmtree(aside)

    def tidy(self) -> None:
        with contextlib.suppress(OSError):  # the next save tries again
            for folder in self._root.glob(f"{_ASIDE}*"):
                _remove_leftover(folder)

    def claims(self) -> list[str]:
        return [name.removeprefix(CLAIM) for name in self._listed() if name.startswith(CLAIM)]

    def claim(self, job: str) -> None:
        with raise_unavailable(f"cannot write to {self.url}"):
            self._root.mkdir(parents=True, exist_ok=True)
            (self._root / f"{CLAIM}{job}").touch()

    def unclaim(self, job: str) -> None:
        with contextlib.suppress(OSError):
            (self._root / f"{CLAIM}{job}").unlink()

    def lock(self, shared: bool) -> BinaryIO | None:
        with contextlib.suppress(OSError):
            self._root.mkdir(parents=True, exist_ok=True)
        try:
            file = open(self._root / _LOCK, "ab")  # noqa: SIM115 - open while locked
        except OSError:  # a save will report it
            return None
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise
            return None
        return file

    def location(self, name: str) -> str:
        return str(self._root / name)

    def _listed(self) -> list[str]:
        message = f"cannot look for checkpoints in {self.url}"
        with raise_unavailable(message), contextlib.suppress(FileNotFoundError):
            return os.listdir(self._root)
        return []


class _LocalDraft:
    """See `Draft`. Its folder is locked while the writer lives; the lock ends with the process."""

    def __init__(self, root: Path, step: int, name: str) -> None:
        self._root, self._step, self._name = root, step, name
        self._folder, self._fd = _create_aside(root)

    def write(self, file: str, pieces: Iterable[Piece]) -> FileDigest:
        with self._translated(), _synced(self._folder / file) as opened:
            return write_pieces(pieces, opened.write)

    def commit(self, manifest: bytes) -> str:
        self.write(MANIFEST, [manifest])
        with self._translated():
            os.fsync(self._fd)
            name = self._name or name_of(self._step)
            try:
                self._folder.rename(self._root / name)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if self._name:
                    raise OSError(error.errno, f"{self._root / name} is there already") from error
                name = unique_name_of(self._step)  # this step was saved before
                self._folder.rename(self._root / name)
            _sync_folder(self._root)
            os.close(self._fd)
            return name

    def abort(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # `commit` may have failed in closing it
            os.close(self._fd)

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        message = f"cannot write the checkpoint of step {self._step} to {self._root}"
        return raise_unavailable(message)


def _create_aside(root: Path) -> tuple[Path, int]:
    """Create a folder; return it, and a file descriptor with a lock on it."""
    while True:
        folder = root / f"{_ASIDE}{token()}"
        folder.mkdir()
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # `tidy` of another process has removed it
            continue
        with contextlib.suppress(OSError):  # a file system without locks: `tidy` uses the age
            fcntl.flock(fd, fcntl.LOCK_EX)
        if folder.exists():  # else `tidy` of another process removed it before it was locked
            return folder, fd
        os.close(fd)


def _remove_leftover(folder: Path) -> None:
    """Remove a folder if its writer is gone."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        # The folder may also be new and not locked yet: then its writer creates another one.
        if _is_leftover(fd):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)


def _is_leftover(fd: int) -> bool:
    """Try to lock a folder; return whether no writer has it locked (without locks: it is old)."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return time.time() - os.fstat(fd).st_mtime > LEFTOVER_S


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """Create a file for the context, and sync it to the disk at the end of the context."""
    with open(path, "xb") as opened:
        yield opened
        opened.flush()
        os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"
