"""mkdocs hook: a page that loads anything from another host is a warning, and so an error.

Who reads the site tells nobody else that he does, and needs no network.
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
    """Look at what a page makes a browser load."""
    for found in _LOADED.finditer(output):
        where = found["src"] or found["href"]
        log.warning("'%s' loads %s, which is not of this site", page.file.src_uri, where)
    return output
