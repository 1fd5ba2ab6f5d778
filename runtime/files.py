"""Files: whether they have changed; checks before writing, atomic replacement, and plots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .errors import UsageError
from .extras import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLOT_SUFFIXES: Final = (".png", ".svg", ".pdf")
#: The formats of plots, for the help of options.
FORMATS: Final = f"{', '.join(_PLOT_SUFFIXES[:-1])} or {_PLOT_SUFFIXES[-1]}"


def file_stamps(files: Iterable[Path]) -> list[tuple[int, int, int, int] | None]:
    """Return for each file a value that changes with its content or permissions; None: missing."""
    stamps = list[tuple[int, int, int, int] | None]()
    for file in files:
        try:
            found = os.stat(file)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return stamps


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

    If `path` is a symbolic link, the link stays and its target is replaced; a link to itself is
    replaced. If `path` is a device or pipe, such as /dev/null, `path` itself is yielded: a renamed
    file would take its place.

    Raises:
        UsageError: the file cannot be written, or the body raised an OSError.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            yield path
            return
        target = Path(os.path.realpath(path))
        # Not `target.with_name`, which refuses "/". The name is random because containers that
        # share the folder may have equal process ids.
        part = target.parent / f".{os.urandom(8).hex()}-{target.name}"
        try:
            yield part
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def check_plot(path: Path) -> None:
    """Check that a plot can be drawn and written, before a long run.

    Raises:
        UsageError: matplotlib is not installed, the suffix is not that of a supported format, or
            the file cannot be written.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib: {install_command('plot')}") from error
    if _suffix(path) not in _PLOT_SUFFIXES:
        raise UsageError(f"--plot {path}: the name must end in {FORMATS}")
    check_writable(path)


def save_plot(figure: Figure, path: Path) -> None:
    """Write a plot in the format of its suffix.

    Raises:
        UsageError: the file cannot be written.
    """
    with replacing(path) as part:
        figure.savefig(part, format=_suffix(path)[1:], dpi=120)


def _suffix(path: Path) -> str:
    return path.suffix.lower()
