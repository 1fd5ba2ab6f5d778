"""Plots of commands: colours, formats and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..runtime.errors import UsageError
from ..runtime.extras import install_command
from .output_files import check_writable, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
