"""State directory of the mesh of one file: lock, record, logs and checkpoints.

Its name consists of the file's name and a hash of its path, so `edl down FILE` finds it. The
process that runs the mesh holds the lock; the system releases the lock when that process ends in
any way. A record is only valid while its processes run.
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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from ...runtime.errors import UsageError
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
        grace_s: most seconds of an orderly end.
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
    def processes(self) -> list[Identity]:
        """Running processes of the mesh, without the keeper."""
        return [one.process for one in self.entries if one.process and one.process.runs]

    def to_json(self) -> str:
        """Return the record as text for `from_json`."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Return the record in a text of `to_json`; None: it is invalid or of another version."""
        try:
            value = json.loads(text)
            if value.pop("version") != _VERSION:
                return None
            entries = tuple(map(_entry, value.pop("entries")))
            return cls(keeper=Identity(**value.pop("keeper")), entries=entries, **value)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def _entry(value: Any) -> ProcessRecord:
    process = value.pop("process")
    return ProcessRecord(process=None if process is None else Identity(**process), **value)


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """The state directory of one mesh.

    Attributes:
        folder: folder with the record, logs, and checkpoints of trainings that name no folder.
    """

    folder: Path

    @classmethod
    def of(cls, file: Path, base: Path) -> Self:
        """Return the directory for a file, which need not exist.

        Args:
            file: path of the mesh's file.
            base: folder of the state directories.
        """
        path = os.path.realpath(file)
        digest = hashlib.sha256(path.encode()).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem)[:40]
        return cls(base / f"{stem}-{digest}")

    @property
    def logs(self) -> Path:
        """Default folder of logs."""
        return self.folder / "logs"

    @property
    def checkpoints(self) -> Path:
        """Default folder of checkpoints; they stay until `edl down`."""
        return self.folder / "checkpoints"

    @property
    def background_log(self) -> Path:
        """Path of the output of an `edl up` in the background."""
        return self.folder / "up.log"

    @property
    def _state(self) -> Path:
        return self.folder / "state.json"

    @property
    def _lock(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.lock")

    def read(self) -> MeshRecord | None:
        """Return the record; None: there is no valid one."""
        try:
            return MeshRecord.from_json(self._state.read_text())
        except (OSError, UnicodeDecodeError):
            return None

    def write(self, state: MeshRecord) -> None:
        """Write the record atomically.

        Raises:
            UsageError: the directory cannot be written.
        """
        part = self._state.with_suffix(".part")
        with _writing(self.folder):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            part.touch(0o600)  # the URL may contain a password
            part.write_text(state.to_json())
            part.replace(self._state)

    def open_background_log(self) -> BinaryIO:
        """Truncate the log of an `edl up` in the background, and open it for reading.

        Raises:
            UsageError: the directory cannot be written.
        """
        with _writing(self.folder):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            return self.background_log.open("w+b", buffering=0)

    def delete_record(self) -> None:
        """Delete the record of a mesh that has ended."""
        with contextlib.suppress(OSError):  # a stale record does no harm: its processes have ended
            self._state.unlink()

    def delete(self) -> None:
        """Remove the directory of a mesh that has ended; the caller holds the lock."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock while the body runs; yield False if another process holds it.

        Raises:
            UsageError: the lock file cannot be written.
        """
        with _writing(self._lock.parent):
            self._lock.parent.mkdir(0o700, parents=True, exist_ok=True)
            fd = self._acquire()
        if fd is None:
            yield False
            return
        try:
            yield True
        finally:
            self._lock.unlink(missing_ok=True)  # before the lock is released
            os.close(fd)

    def _acquire(self) -> int | None:
        """Return a descriptor that holds the lock; None: another process holds it."""
        while True:
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            if self._is_current(fd):
                return fd
            os.close(fd)  # the former holder has removed the file

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._lock))
        except FileNotFoundError:
            return False


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write in {folder}: {error.strerror}; XDG_CACHE_HOME names another folder for"
            " what is kept of a mesh"
        ) from error


def recorded_meshes(base: Path) -> list[tuple[StateDirectory, MeshRecord]]:
    """Return all meshes of this user that have a record."""
    found = [StateDirectory(path.parent) for path in sorted(base.glob("*/state.json"))]
    return [(place, state) for place in found if (state := place.read()) is not None]


def relative_path(file: Path) -> str:
    """Return a path relative to the working directory if it is below it."""
    relative = os.path.relpath(file)
    return str(file) if relative.startswith(os.pardir) else relative
