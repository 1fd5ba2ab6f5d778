"""The one table between our errors and HTTP's status codes."""

from __future__ import annotations

import math
from typing import Final

from ...errors import (
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    Forbidden,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    UsageError,
    WireError,
    WrongInstance,
)
from ...proto.status import STATUS_HEADER, to_metadata, to_status
from ..request import TooLarge

#: Logged of a request whose caller has hung up, as nginx does.
CLIENT_GONE: Final = 499
#: Longer words help nobody.
_MAX_WORDS: Final = 1000


class NotThere(RequestRefused):
    """Nothing has this path."""


class WrongKind(RequestRefused):
    """The body is in a form that is not taken."""


_SENT: Final[dict[type[BaseException], int]] = {
    NotThere: 404,
    WrongKind: 415,
    RequestRefused: 400,
    WireError: 400,
    UsageError: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    WrongInstance: 412,
    TooLarge: 413,
    RateLimited: 429,
    RetryableError: 503,
    DeadlineExceeded: 504,
    TeacherLost: 503,
    BadAnswer: 500,
    Exception: 500,
}


def to_http(error: EdlError) -> tuple[int, dict[str, str], str]:
    """What a request is answered that ends by `error`: status, headers, words."""
    status = next(_SENT[kind] for kind in type(error).__mro__ if kind in _SENT)
    headers = {STATUS_HEADER: to_status(error)[0].name, **dict(to_metadata(error))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RateLimited) and status == 429:
        # In whole seconds: who comes back sooner finds no room.
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 0)))
    words = str(error).encode("utf-8", "replace").decode()
    return status, headers, words if len(words) <= _MAX_WORDS else words[: _MAX_WORDS - 1] + "…"
