"""mkdocs hook: a folder in the nav stands for its pages, so that a new one needs no line there.

`adr/` is README.md, if there is one, and then the others by their names. A page that is named
beside its folder keeps the place that it is given by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Write the folders of the nav out."""
    named = set(_named(config.nav))
    config.nav = _written(config.nav, Path(config.docs_dir), named)
    return config


def _written(nav: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _written(below, docs, named) for title, below in nav.items()}
    if isinstance(nav, str):
        return _pages(nav, docs, named) if nav.endswith("/") else nav
    found = []
    for entry in nav:
        below = _written(entry, docs, named)
        found += below if isinstance(entry, str) and isinstance(below, list) else [below]
    return found


def _pages(folder: str, docs: Path, named: set[str]) -> list[str]:
    pages = sorted((docs / folder).glob("*.md"), key=lambda page: (page.name != "README.md", page))
    return [uri for page in pages if (uri := page.relative_to(docs).as_posix()) not in named]


def _named(nav: Any) -> list[str]:
    """The pages that are named in a nav."""
    if isinstance(nav, str):
        return [nav]
    below = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in below for name in _named(entry)]
