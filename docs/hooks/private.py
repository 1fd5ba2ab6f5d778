"""mkdocs hook: warn about a page that loads anything from another host (`--strict`: an error).

So the site works without a network, and no other host learns about its readers.
"""

from __future__ import annotations

import logging
import re
from typing import Any

log = logging.getLogger("mkdocs.hooks.private")
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|object)\b[^>]*?\b(?:src|data)=\"?(?P<src>(?:https?:)?//[^\"\s>]+)"
    r"|<link\b(?![^>]*rel=\"?(?:canonical|next|prev))[^>]*?\bhref=\"?(?P<href>(?:https?:)?//[^\"\s>]+)"
)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn about everything that a browser would load from another host."""
    for found in _LOADED.finditer(output):
        where = found["src"] or found["href"]
        log.warning("'%s' loads %s, which is not on this site", page.file.src_uri, where)
    return output
