"""Where a mesh of one file is written down: its folder, its lock, its state.

The folder has the name of the file and a hash of its path, so that `edl down FILE` finds it. The
lock is held by the process that keeps the mesh, and let go by the system however that ends; what
the state says counts only as long as its processes are those that it names.
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

from ...errors import UsageError
from ...supervise import Identity

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One process of a mesh, as the state tells it.

    Attributes:
        name: its own.
        role: coordinator, teacher or student.
        phase: see `startup.Phase`.
        process: which it is; None: it does not run.
        address: where it serves; empty: it does not.
    """

    name: str
    role: str
    phase: str
    process: Identity | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A mesh that is up, or was when its process was killed.

    Attributes:
        file: its file, absolute.
        keeper: the process that keeps it.
        phase: starting, up (all of it was there) or leaving.
        url: Redis URL; empty: not known yet.
        logs: folder of logs.
        grace_s: within which it ends when it is told to, seconds.
        entries: its processes.
    """

    file: str
    keeper: Identity
    phase: str = "starting"
    url: str = ""
    logs: str = ""
    grace_s: float = 0.0
    entries: tuple[Entry, ...] = ()

    @property
    def processes(self) -> list[Identity]:
        """Those of its processes that run, without the keeper."""
        return [one.process for one in self.entries if one.process and one.process.runs]

    def to_json(self) -> str:
        """What `from_json` reads."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """What was written; None: by another version, or not by us."""
        try:
            value = json.loads(text)
            if value.pop("version") != _VERSION:
                return None
            entries = tuple(map(_entry, value.pop("entries")))
            return cls(keeper=Identity(**value.pop("keeper")), entries=entries, **value)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def _entry(value: Any) -> Entry:
    process = value.pop("process")
    return Entry(process=None if process is None else Identity(**process), **value)


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one file's mesh.

    Attributes:
        folder: it has state, logs, and the checkpoints that no student names a place for.
    """

    folder: Path

    @classmethod
    def of(cls, file: Path, base: Path) -> Self:
        """The place of a file, which may have been deleted since."""
        path = os.path.realpath(file)
        digest = hashlib.sha256(path.encode()).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem)[:40]
        return cls(base / f"{stem}-{digest}")

    @property
    def logs(self) -> Path:
        """Where logs go that nobody wants elsewhere."""
        return self.folder / "logs"

    @property
    def checkpoints(self) -> Path:
        """Those of trainings that name no place; they stay until `edl down`."""
        return self.folder / "checkpoints"

    @property
    def own_log(self) -> Path:
        """What `edl up` itself says in the background."""
        return self.folder / "up.log"

    @property
    def _state(self) -> Path:
        return self.folder / "state.json"

    @property
    def _lock(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.lock")

    def read(self) -> State | None:
        """What is written of a mesh; None: nothing."""
        try:
            return State.from_json(self._state.read_text())
        except (OSError, UnicodeDecodeError):
            return None

    def write(self, state: State) -> None:
        """Write it down, whole or not at all.

        Raises:
            UsageError: nothing can be written there.
        """
        part = self._state.with_suffix(".part")
        with _writing(self.folder):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            part.touch(0o600)  # the URL may hold a password
            part.write_text(state.to_json())
            part.replace(self._state)

    def begin_own_log(self) -> BinaryIO:
        """The log of the one in the background, empty, for who reads it meanwhile.

        Raises:
            UsageError: nothing can be written there.
        """
        with _writing(self.folder):
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            return self.own_log.open("w+b", buffering=0)

    def forget(self) -> None:
        """The mesh has ended: nothing is to be found by `edl down`."""
        with contextlib.suppress(OSError):  # what stays names processes that have ended
            self._state.unlink()

    def clear(self) -> None:
        """Remove all that is left of a mesh that has ended; who holds the lock calls it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Keep all others from this mesh in the body; yields False where another one has it.

        Raises:
            UsageError: nothing can be written there.
        """
        with _writing(self._lock.parent):
            self._lock.parent.mkdir(0o700, parents=True, exist_ok=True)
            fd = self._taken()
        if fd is None:
            yield False
            return
        try:
            yield True
        finally:
            self._lock.unlink(missing_ok=True)  # while it is held: no other one is waited for
            os.close(fd)

    def _taken(self) -> int | None:
        """A descriptor that holds the lock; None: another one has it."""
        while True:
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            if self._is_there(fd):
                return fd
            os.close(fd)  # the one before had removed it meanwhile

    def _is_there(self, fd: int) -> bool:
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


def all_places(base: Path) -> list[tuple[Place, State]]:
    """Every mesh of this user that is written down, and is or was up."""
    found = [Place(path.parent) for path in sorted(base.glob("*/state.json"))]
    return [(place, state) for place in found if (state := place.read()) is not None]


def short(file: Path) -> str:
    """A file as a user would name it here."""
    relative = os.path.relpath(file)
    return str(file) if relative.startswith(os.pardir) else relative
