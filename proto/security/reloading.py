"""Files that are read again when they change, so that a secret is rotated without a restart."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ...errors import UsageError

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Reloaded(Generic[_T]):
    """What some files hold, as they are now. Safe to use from several threads.

    A change that cannot be used (a file that is gone, half written, open to others) is logged once
    and what was read before stays in force: a slip of an editor must lock nobody out. To take
    something back, write a file without it.

    Args:
        paths: the files; a change of any makes all be read again.
        load: reads them. Its value is kept.

    Raises:
        UsageError: of `load`, the first time.
    """

    def __init__(self, paths: tuple[Path, ...], load: Callable[[], _T]) -> None:
        self._paths = paths
        self._load = load
        self._lock = threading.Lock()
        self._seen = _signs(paths)  # before reading: a change in between is a change
        self._value = load()

    def __repr__(self) -> str:
        return f"Reloaded({', '.join(map(str, self._paths))})"

    def current(self) -> _T:
        """What the files hold; read now if they have changed."""
        signs = _signs(self._paths)
        if signs == self._seen:
            return self._value
        with self._lock:
            if signs != self._seen:
                self._seen = signs
                self._reload()
            return self._value

    def _reload(self) -> None:
        try:
            self._value = self._load()
        except UsageError as error:
            log.error("%s; what was read before stays in force", error)
        else:
            log.info("read again, as it has changed: %s", ", ".join(map(str, self._paths)))


def _signs(paths: tuple[Path, ...]) -> tuple[tuple[int, int, int, int] | None, ...]:
    """What changes when a file does, its permissions included; None where there is no file."""
    return tuple(map(_sign, paths))


def _sign(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
