"""Output of commands: cache folders, files that are replaced atomically, plots, reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..runtime.errors import UsageError
from ..runtime.extras import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


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
    part = path.parent / f".{path.name}.{os.getpid()}.part"  # a root has no name to change
    try:
        try:
            yield part
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


BLUE: Final = "#2f6fb0"
GREEN: Final = "#2e8b57"
GREY: Final = "#8c8c8c"
ORANGE: Final = "#d98c3f"
RED: Final = "#c0392b"
_FORMATS: Final = (".png", ".svg", ".pdf")
#: For the help of options.
FORMATS: Final = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"


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
    if _format(path) not in _FORMATS:
        raise UsageError(f"--plot {path}: the name must end in {FORMATS}")
    check_writable(path)


def save_plot(figure: Figure, path: Path) -> None:
    """Write a plot in the format of its suffix.

    Raises:
        UsageError: the file cannot be written.
    """
    with replacing(path) as part:
        figure.savefig(part, format=_format(path)[1:], dpi=120)


def _format(path: Path) -> str:
    return path.suffix.lower()


def report_console() -> Console:
    """Return the console for reports. In a pipe, rich would wrap tables at 80 columns."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 132
    return Console(width=width, highlight=False, markup=False, emoji=False)


def format_duration(seconds: float) -> str:
    """Format a duration with at most two units."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 120:
        return f"{int(minutes)} min {int(seconds % 60):02} s"
    if hours < 48:
        return f"{int(hours)} h {int(minutes % 60):02} min"
    return f"{int(hours / 24)} d {int(hours % 24):02} h"
