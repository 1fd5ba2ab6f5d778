"""Maps our errors to status codes of gRPC and HTTP, and back.

A server answers an error of `runtime/errors.py` with `to_status`; a client turns the status back
into an error with `from_status`. Codes that only gRPC itself or foreign servers send are in the
table too, so every code has a meaning.

`VersionMismatch` is sent as OUT_OF_RANGE, because the usual codes are in use: FAILED_PRECONDITION
means `WrongInstance`, and gRPC itself answers UNIMPLEMENTED for an unknown method.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import grpc

from ..runtime.errors import (
    DeadlineExceeded,
    EdlError,
    Forbidden,
    LeaseSuperseded,
    PredictorCrashed,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    UnavailableError,
    UsageError,
    VersionMismatch,
    WireError,
    WrongInstance,
)
from .security.certificates import handshake_hint

Code = grpc.StatusCode

#: The error that a client raises for each code, and the status of an HTTP answer.
_MEANINGS: Final[dict[grpc.StatusCode, tuple[type[EdlError], int]]] = {
    Code.INVALID_ARGUMENT: (RequestRefused, 400),
    Code.NOT_FOUND: (RequestRefused, 500),
    Code.UNIMPLEMENTED: (RequestRefused, 500),
    Code.ALREADY_EXISTS: (LeaseSuperseded, 500),
    Code.OUT_OF_RANGE: (VersionMismatch, 400),
    Code.FAILED_PRECONDITION: (WrongInstance, 412),
    Code.ABORTED: (RetryableError, 503),
    Code.RESOURCE_EXHAUSTED: (RateLimited, 429),
    Code.INTERNAL: (RetryableError, 500),
    Code.UNKNOWN: (RetryableError, 500),
    Code.DATA_LOSS: (PredictorCrashed, 503),
    Code.UNAUTHENTICATED: (Unauthenticated, 401),
    Code.PERMISSION_DENIED: (Forbidden, 403),
    Code.UNAVAILABLE: (TeacherLost, 503),
    Code.DEADLINE_EXCEEDED: (DeadlineExceeded, 504),
    Code.CANCELLED: (TeacherLost, 500),
}
#: The code that a server sends for an error, by the class of the error or its nearest base class.
#: Of several codes in `_MEANINGS` with one class, the server sends the first.
_CODE_OF_ERROR: Final[dict[type, grpc.StatusCode]] = {
    **{kind: code for code, (kind, _) in reversed(_MEANINGS.items())},
    WireError: Code.INVALID_ARGUMENT,
    UsageError: Code.INVALID_ARGUMENT,
    UnavailableError: Code.UNAVAILABLE,
    # All other errors may be the server's own fault, so the peer may try again.
    Exception: Code.INTERNAL,
}

#: Key of trailing metadata: milliseconds after which to try again. gRPC defines it, so clients with
#: automatic retries respect it too.
PUSHBACK: Final = "grpc-retry-pushback-ms"
#: HTTP header of an error; its value is the name of the gRPC status.
STATUS_HEADER: Final = "edl-status"
#: Part of gRPC's error text for a message above the size limit. The error has the code of overload,
#: but a second attempt would fail as well.
_TOO_LARGE = "larger than max"
#: Details are sent in a header, where each byte may take three. gRPC accepts 8 KiB of headers.
_MAX_DETAILS_BYTES = 1000


def to_status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the status code and message with which a server ends a call that failed."""
    code = next(_CODE_OF_ERROR[kind] for kind in type(error).__mro__ if kind in _CODE_OF_ERROR)
    message = str(error) if isinstance(error, EdlError) else f"{type(error).__name__}: {error}"
    details = message.encode("utf-8", "replace")
    if len(details) > _MAX_DETAILS_BYTES:
        details = details[: _MAX_DETAILS_BYTES - 3] + "…".encode()
    return code, details.decode("utf-8", "ignore")


def to_http_status(code: grpc.StatusCode) -> int:
    """Return the HTTP status of an error with this gRPC code."""
    return _MEANINGS[code][1]


def to_metadata(error: Exception) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata for `error`, with the time to wait before the next attempt."""
    retry_after_s = error.retry_after_s if isinstance(error, RateLimited) else None
    if retry_after_s is None:
        return ()
    return ((PUSHBACK, str(max(1, round(retry_after_s * 1000)))),)


def from_status(
    code: grpc.StatusCode, details: str | None, metadata: Iterable[Sequence[str | bytes]] = ()
) -> EdlError:
    """Return the error that a client raises for a call that ended with `code`.

    Args:
        code: the status.
        details: the message of the status; None or empty if there is none.
        metadata: the trailing metadata, as pairs.

    Raises:
        ValueError: `code` is OK.
    """
    if code not in _MEANINGS:
        raise ValueError(f"{code} is not an error")
    kind, _ = _MEANINGS[code]
    if code is Code.RESOURCE_EXHAUSTED and _TOO_LARGE in (details or ""):
        kind = RequestRefused
    if hint := handshake_hint(details or "") if code is Code.UNAVAILABLE else "":
        details = f"{details}; {hint}"
    error = kind(details or f"the peer answered {code.name} without details")
    if isinstance(error, RateLimited):
        error.retry_after_s = _pushback_s(metadata)
    return error


def _pushback_s(metadata: Iterable[Sequence[str | bytes]]) -> float | None:
    ms = next((value for name, value in metadata if name == PUSHBACK), "")
    # A negative number means "never"; it is treated as "unknown".
    return int(ms) / 1000 if ms.isascii() and ms.isdigit() and len(ms) < 10 else None
