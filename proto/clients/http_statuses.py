"""What HTTP's status codes mean, whoever sends them: servers of the protocol, and proxies."""

from __future__ import annotations

from typing import Final

import grpc

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
    WrongInstance,
)
from ..status import STATUS_HEADER, from_status
from .http_calls import Reply

_READ: Final[dict[int, type[EdlError]]] = {
    401: Unauthenticated,
    403: Forbidden,
    408: DeadlineExceeded,
    412: WrongInstance,
    429: RateLimited,
    500: RetryableError,
    501: RequestRefused,
    502: TeacherLost,  # of a proxy that does not reach its server
    503: RetryableError,
    504: DeadlineExceeded,
}
#: What a family of other codes is read as, by its first one.
_FAMILIES: Final[tuple[tuple[int, type[EdlError]], ...]] = (
    (500, RetryableError),
    (400, RequestRefused),
    (300, RequestRefused),  # the address is another one
    (0, BadAnswer),  # neither an answer nor an error
)
_MOST_SECONDS_DIGITS: Final = 9


def from_http(reply: Reply) -> EdlError:
    """The error that an answer with another status than 200 stands for.

    Our teachers name gRPC's status beside it, which says more.
    """
    code = grpc.StatusCode.__members__.get(reply.headers.get(STATUS_HEADER, ""), grpc.StatusCode.OK)
    if code is not grpc.StatusCode.OK:
        return from_status(code, reply.words(), reply.headers.items())
    kind = _READ.get(reply.status)
    if kind is None:
        kind = next(kind for first, kind in _FAMILIES if reply.status >= first)
    error = kind(f"HTTP {reply.status}: {reply.words()}")
    if isinstance(error, RateLimited):
        said = reply.headers.get("retry-after", "")
        if said.isascii() and said.isdigit() and len(said) <= _MOST_SECONDS_DIGITS:
            error.retry_after_s = float(said)
    return error
