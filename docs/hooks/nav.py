"""mkdocs hook: expand each folder in the nav to its pages, so that a new page needs no entry.

README.md comes first, then the others by name. A page that has its own entry in the nav is not
repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Expand the folders of the nav."""
    named = set(_named(config.nav))
    config.nav = _expanded(config.nav, Path(config.docs_dir), named)
    return config


def _expanded(nav: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(below, docs, named) for title, below in nav.items()}
    if isinstance(nav, str):
        return _pages(nav, docs, named) if nav.endswith("/") else nav
    found = []
    for entry in nav:
        below = _expanded(entry, docs, named)
        found += below if isinstance(entry, str) and isinstance(below, list) else [below]
    return found


def _pages(folder: str, docs: Path, named: set[str]) -> list[str]:
    pages = sorted((docs / folder).glob("*.md"), key=lambda page: (page.name != "README.md", page))
    return [uri for page in pages if (uri := page.relative_to(docs).as_posix()) not in named]


def _named(nav: Any) -> list[str]:
    """Return the pages that have an entry in a nav."""
    if isinstance(nav, str):
        return [nav]
    below = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in below for name in _named(entry)]
