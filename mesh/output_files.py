"""Files that commands write: cache folders, checks before the work, atomic replacement."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..runtime.errors import UsageError


def cache_folder(name: str) -> Path:
    """Return the folder of one kind of files in this user's cache; it need not exist.

    Raises:
        UsageError: this user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "edl-dist" / name
    except RuntimeError as error:
        raise UsageError(
            "this user has no home folder: set XDG_CACHE_HOME to a folder for caches"
        ) from error


def check_writable(path: Path) -> None:
    """Raise UsageError if `path` cannot be written; create no file."""
    why = None
    if path.is_dir():
        why = "it is a folder"
    elif path.exists() and not os.access(path, os.W_OK):
        why = "it is not writable"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"the folder {path.parent} is not writable"
    if why is not None:
        raise UsageError(f"cannot write {path}: {why}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` after the body has succeeded.

    Raises:
        UsageError: the file cannot be written: an OSError of the body, too.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            yield part
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
