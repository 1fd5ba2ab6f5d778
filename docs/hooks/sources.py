"""mkdocs hook: make a package `edl` with only the folders that the Python reference describes.

The root of the repository is the package (docs/adr/0001-layout.md). It also has environments and a
link to itself, where the reference's generator would find further modules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "build" / "reference" / "edl"
PARTS = (
    "__init__.py",
    "coordinator",
    "distill_reader",
    "integrations",
    "mesh",
    "runtime",
    "scheduler",
    "student",
)


def on_startup(**_: Any) -> None:
    """Make the package of links; replace existing ones."""
    PACKAGE.mkdir(parents=True, exist_ok=True)
    for link in PACKAGE.iterdir():
        link.unlink()  # also those of folders that were moved
    for name in PARTS:
        (PACKAGE / name).symlink_to(ROOT / name)
