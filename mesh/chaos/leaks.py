"""What a run has left behind: processes that bear its mark, shared memory that it has named."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

#: In the environment of every process of a run, so that orphans are known, too.
MARK = "EDL_CHAOS_RUN"
SHARED_MEMORY = Path("/dev/shm")
#: Names that frameworks give. No process of a run loads one: they are somebody else's.
_STRANGERS = ("paddle_", "torch_")
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Belongings:
    """What there was of shared memory before a run.

    Attributes:
        mark: the value of `MARK`, by which the run's processes are known.
        segments: names of shared memory.
    """

    mark: str
    segments: frozenset[str]

    @classmethod
    def before(cls, mark: str) -> Self:
        """What there is now."""
        return cls(mark, _segments())

    def left(self, settle_s: float = 5.0) -> tuple[str, ...]:
        """In words, what is left of the run; what goes within `settle_s` is not."""
        deadline = time.monotonic() + settle_s
        while (found := self._found()) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return found

    def _found(self) -> tuple[str, ...]:
        processes = tuple(f"process {pid}: {what}" for pid, what in _marked(self.mark))
        new = _segments() - self.segments
        segments = sorted(new - _in_use()) if new else []
        return processes + tuple(f"shared memory {SHARED_MEMORY / name}" for name in segments)


def _segments() -> frozenset[str]:
    names = os.listdir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else ()
    return frozenset(name for name in names if not name.startswith(_STRANGERS))


def _marked(mark: str) -> list[tuple[int, str]]:
    """Process id and command line of each process of the run, but this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            if pid != os.getpid() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append((pid, words.decode(errors="replace").strip()[:200]))
    return found


def _in_use() -> set[str]:
    """Segments that a living process has mapped or open: ours have ended, so it is a stranger's."""
    paths: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            paths.update((folder / "maps").read_text().split())
            for descriptor in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    paths.add(os.readlink(descriptor))
    return {Path(path).name for path in paths if path.startswith(f"{SHARED_MEMORY}/")}
