"""Output of commands: cache folders, colours of plots, reports."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..runtime.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

ReportFile = Annotated[
    Path | None, typer.Option("--json", help="Write the report to this file, as JSON.")
]


def cache_folder(name: str) -> Path:
    """Return the path of a folder in this user's cache. The folder may not exist yet.

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


BLUE: Final = "#2f6fb0"
GREEN: Final = "#2e8b57"
GREY: Final = "#8c8c8c"
ORANGE: Final = "#d98c3f"
RED: Final = "#c0392b"


def report_console() -> Console:
    """Return a console for reports, 132 columns wide (not rich's 80) if stdout is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 132
    return Console(width=width, highlight=False, markup=False, emoji=False)


def format_duration(seconds: float) -> str:
    """Format a duration with at most two units."""
    if seconds < 0.9995:  # from here on, .3g would write "1e+03 ms"
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 120:
        return f"{int(minutes)} min {int(seconds % 60):02} s"
    if hours < 48:
        return f"{int(hours)} h {int(minutes % 60):02} min"
    return f"{int(hours / 24)} d {int(hours % 24):02} h"
