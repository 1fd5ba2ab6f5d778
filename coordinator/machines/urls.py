"""Where a model may be fetched from, and how its content is called."""

from __future__ import annotations

import re
from typing import Final

from ...errors import UsageError

#: Protocols of fsspec that read one place and nothing else. Chained ones (`zip://...::https://...`)
#: unpack archives or keep files elsewhere, and some run commands on other machines.
PROTOCOLS: Final = (
    "file", "http", "https", "s3", "gs", "gcs", "az", "abfs", "abfss", "oss", "hdfs", "webhdfs",
    "bos", "hf",
)  # fmt: skip
_CONTENT: Final = re.compile(r"[0-9a-f]{64}")
_LONGEST: Final = 2000


def check_url(url: str) -> str:
    """The URL of a model; raises UsageError where none can be fetched from there."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in PROTOCOLS:
        raise UsageError(
            f"a model is fetched from a URL of {', '.join(PROTOCOLS)}, such as s3://bucket/model "
            f"or file:///models/resnet, not from {_shown(url)!r}"
        )
    if not rest.strip("/") or not url.isprintable() or " " in url or len(url) > _LONGEST:
        raise UsageError(f"{_shown(url)!r} names no model: blanks are %20, and there is a path")
    if "::" in url:
        raise UsageError(f"{_shown(url)!r} chains protocols: name the model's own place")
    if scheme in ("http", "https", "webhdfs") and "@" in rest.partition("/")[0]:
        raise UsageError(
            f"the URL {_shown(url)!r} holds a user or password, which everybody who sees the "
            "deployment would see: give it to the machines instead (docs/agent.md)"
        )
    return url


def is_content(content_id: str) -> bool:
    """Whether it is a content id as `edl teacher fingerprint` prints it."""
    return _CONTENT.fullmatch(content_id) is not None


def check_content(content_id: str) -> str:
    """The same; raises UsageError where it is none."""
    if not is_content(content_id):
        raise UsageError(
            "the content of a model is 64 hexadecimal digits, as 'edl teacher fingerprint MODEL' "
            f"prints them, not {content_id[:80]!r}"
        )
    return content_id


def _shown(url: str) -> str:
    """A URL without what may be a password in it."""
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"[:160]
