"""mkdocs hook: a package `edl` for the reference, of those folders alone that it is about.

The root of the repository is the package (docs/adr/0001-layout.md), and holds environments and a
link to itself: who looks for modules in it finds more than there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "reference" / "edl"
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
    """Make it, of links; again without effect."""
    PLACE.mkdir(parents=True, exist_ok=True)
    for link in PLACE.iterdir():
        link.unlink()  # of parts that moved, too
    for name in PARTS:
        (PLACE / name).symlink_to(ROOT / name)
