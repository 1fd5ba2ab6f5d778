"""mkdocs hook: accept lists directly after a paragraph, as Git hosts do."""

from __future__ import annotations

import re
from typing import Any

_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert the blank line that Python-Markdown needs before a list."""
    lines: list[str] = []
    fence = ""
    for line in markdown.splitlines():
        mark = re.match(r" *(`{3,}|~{3,})", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        before = lines[-1] if lines else ""
        if not fence and _ITEM.match(line) and _is_text(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def _is_text(line: str) -> bool:
    """Return whether a line belongs to a paragraph."""
    return bool(line.strip()) and not _ITEM.match(line) and not line.startswith((" ", "|", "#"))
