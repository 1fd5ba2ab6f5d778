"""The files of a mesh that `edl up FILE` runs: pid file, logs and checkpoints.

Their names consist of the name of FILE and a hash of its path, so `edl down FILE` finds them. The
process that runs the mesh locks the pid file, which contains the record of the mesh. The operating
system releases the lock when that process ends. If the process is killed, its record stays, because
it names the other processes, which may still run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, Final, Self

from ...proto.dataclass_json import from_plain, to_plain
from ...runtime.errors import UsageError, WireError
from ...runtime.supervise import Identity

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process of a mesh.

    Attributes:
        name: name of the process.
        role: coordinator, teacher or student.
        phase: see `mesh_state.Phase`.
        process: identity of the running process; None: it does not run.
        address: address of its server; empty: none.
    """

    name: str
    role: str
    phase: str
    process: Identity | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class MeshRecord:
    """A mesh that is up, or was up when its `edl up` was killed.

    Attributes:
        file: absolute path of the mesh's file.
        keeper: process of `edl up`.
        phase: starting, up or leaving.
        url: Redis URL; empty: unknown.
        logs: folder of logs.
        grace_s: maximum seconds that an orderly end may take.
        entries: processes of the mesh.
    """

    file: str
    keeper: Identity
    phase: str = "starting"
    url: str = ""
    logs: str = ""
    grace_s: float = 0.0
    entries: tuple[ProcessRecord, ...] = ()

    @property
    def running(self) -> list[Identity]:
        """The processes that run now, without the keeper."""
        return [one.process for one in self.entries if one.process and one.process.runs]

    def to_json(self) -> str:
        """Return the record as text for `from_json`."""
        return json.dumps({"version": _VERSION, **to_plain(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Return the record in a text of `to_json`; None: it is invalid or of another version."""
        try:
            value = json.loads(text)
            return from_plain(cls, value) if value["version"] == _VERSION else None
        except (ValueError, TypeError, KeyError, WireError):
            return None


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """The state directory of one mesh.

    Attributes:
        folder: folder with logs, and with checkpoints of trainings without --checkpoint.
    """

    folder: Path

    @classmethod
    def of(cls, file: Path, base: Path) -> Self:
        """Return the directory for a mesh's file. The file need not exist.

        Args:
            file: path of the mesh's file.
            base: folder of the state directories.
        """
        path = os.path.realpath(file)
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem)[:40]
        return cls(base / f"{stem}-{digest}")

    @property
    def logs(self) -> Path:
        """Default folder of logs."""
        return self.folder / "logs"

    @property
    def checkpoints(self) -> Path:
        """Default folder of checkpoints, which stay until `edl down`."""
        return self.folder / "checkpoints"

    @property
    def background_log(self) -> Path:
        """Path of the output of an `edl up` in the background."""
        return self.folder / "up.log"

    @property
    def pid_file(self) -> Path:
        """Path of the pid file: beside the folder, because `edl down` deletes the folder."""
        return self.folder.with_name(f"{self.folder.name}.pid")

    def read(self) -> MeshRecord | None:
        """Return the record; None: there is no valid record."""
        try:
            return MeshRecord.from_json(self.pid_file.read_text())
        except (OSError, UnicodeDecodeError):
            return None

    def open_background_log(self) -> BinaryIO:
        """Truncate the log of an `edl up` in the background, and open it.

        Raises:
            UsageError: the directory cannot be written.
        """
        with _translated_errors(self.folder):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            return self.background_log.open("w+b", buffering=0)

    def delete(self) -> None:
        """Remove the folder of a mesh that has ended; the caller holds the lock."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def lock(self) -> Iterator[LockedPidFile | None]:
        """Hold the lock while the body runs; yield None if another process has locked the file.

        Afterwards the pid file is removed, unless processes in its record still run.

        Raises:
            UsageError: the pid file cannot be written.
        """
        path = self.pid_file
        with _translated_errors(path.parent):
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            file = _open_locked(path)
        if file is None:
            yield None
            return
        pid_file = LockedPidFile(path, file)
        try:
            yield pid_file
        finally:
            record = self.read()
            pid_file.close(remove=record is None or not record.running)


class LockedPidFile:
    """The pid file of a mesh while this process holds its lock. Not thread-safe."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self._path, self._file = path, file
        self._part = path.with_suffix(".part")

    def write(self, record: MeshRecord) -> None:
        """Replace the pid file with a new locked one that contains `record`.

        Raises:
            UsageError: the file cannot be written.
        """
        with _translated_errors(self._path.parent), ExitStack() as undo:
            file = undo.enter_context(_open(self._part, "w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(record.to_json())
            file.flush()
            self._part.replace(self._path)
            undo.pop_all()
            self._file.close()
            self._file = file

    def close(self, remove: bool) -> None:
        """Release the lock; if `remove`, remove the file first."""
        if remove and _is_same_file(self._path, self._file):
            with contextlib.suppress(OSError):  # a stale record does no harm
                # A process that was killed while it wrote may have left this file.
                self._part.unlink(missing_ok=True)
                self._path.unlink()
        self._file.close()


def _open_locked(path: Path) -> IO[str] | None:
    """Open and lock the file; return None if another process has locked it."""
    while True:
        file = _open(path, "a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        if _is_same_file(path, file):
            return file
        file.close()  # the former holder has replaced or removed it


def _open(path: Path, mode: str) -> IO[str]:
    """Open a file that only this user can read: the URL may contain a password."""
    return open(path, mode, opener=partial(os.open, mode=0o600))


def _is_same_file(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


@contextmanager
def _translated_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write in {folder}: {error.strerror}; set XDG_CACHE_HOME to keep the files of"
            " meshes in another folder"
        ) from error


def recorded_meshes(base: Path) -> list[tuple[StateDirectory, MeshRecord]]:
    """Return all meshes of this user that have a record."""
    directories = [StateDirectory(path.with_suffix("")) for path in sorted(base.glob("*.pid"))]
    return [(each, record) for each in directories if (record := each.read()) is not None]


def relative_path(file: Path) -> str:
    """Return a path relative to the working directory; unchanged if the path is outside."""
    relative = os.path.relpath(file)
    return str(file) if relative.startswith(os.pardir) else relative
