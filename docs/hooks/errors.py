"""mkdocs hook: write a table of errors from the docstrings of `runtime/errors.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

MARK: Final = "<!-- all errors -->"
REMEDY: Final = "Remedy: "


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark by the table."""
    return markdown.replace(MARK, table()) if MARK in markdown else markdown


def table() -> str:
    """Return a row for each error that has a remedy, parents before children."""
    from edl.runtime.errors import EdlError

    rows = ["| error | cause | remedy | exit code |", "|---|---|---|---|"]
    for error in _tree(EdlError):
        cause, _, rest = inspect.getdoc(error).partition("\n\n")  # type: ignore[union-attr]
        paragraphs = [text for text in rest.split("\n\n") if text.startswith(REMEDY)]
        for remedy in paragraphs:
            words = (" ".join(text.split()) for text in (cause, remedy.removeprefix(REMEDY)))
            rows.append(f"| `{error.__name__}` | {' | '.join(words)} | {error.exit_code} |")
    return "\n".join(rows)


def _tree(error: Any) -> Iterator[Any]:
    yield error
    for below in error.__subclasses__():
        yield from _tree(below)
