"""The one table between our errors and gRPC's status codes.

A server raises an error of `errors.py` and answers with `to_status`; a client turns what it got
back with `from_status`. Codes that gRPC itself and foreign servers answer with are in the table
too, so that every code has a meaning here.

`VersionMismatch` travels as OUT_OF_RANGE, which nothing else on our wire uses: FAILED_PRECONDITION
is taken by `WrongInstance`, and UNIMPLEMENTED is what gRPC itself answers for an unknown method.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import grpc

from ..errors import (
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

#: What an error is sent as. The nearest class of an error's family counts; the last line is every
#: other error: it may be ours alone, so the peer may try again.
_SENT: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (RequestRefused, Code.INVALID_ARGUMENT),
    (WireError, Code.INVALID_ARGUMENT),
    (UsageError, Code.INVALID_ARGUMENT),
    (VersionMismatch, Code.OUT_OF_RANGE),
    (WrongInstance, Code.FAILED_PRECONDITION),
    (LeaseSuperseded, Code.ALREADY_EXISTS),
    (Unauthenticated, Code.UNAUTHENTICATED),
    (Forbidden, Code.PERMISSION_DENIED),
    (RateLimited, Code.RESOURCE_EXHAUSTED),
    (PredictorCrashed, Code.DATA_LOSS),
    (RetryableError, Code.ABORTED),
    (DeadlineExceeded, Code.DEADLINE_EXCEEDED),
    (TeacherLost, Code.UNAVAILABLE),
    (UnavailableError, Code.UNAVAILABLE),
    (Exception, Code.INTERNAL),
)

#: What a code is over HTTP; 500 for all others.
HTTP: Final = {
    Code.INVALID_ARGUMENT: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.FAILED_PRECONDITION: 412,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.ABORTED: 503,
    Code.DATA_LOSS: 503,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}

#: What a code is read as.
_READ: dict[grpc.StatusCode, type[EdlError]] = {
    Code.INVALID_ARGUMENT: RequestRefused,
    Code.NOT_FOUND: RequestRefused,
    Code.UNIMPLEMENTED: RequestRefused,
    Code.ALREADY_EXISTS: LeaseSuperseded,
    Code.OUT_OF_RANGE: VersionMismatch,
    Code.FAILED_PRECONDITION: WrongInstance,
    Code.ABORTED: RetryableError,
    Code.RESOURCE_EXHAUSTED: RateLimited,
    Code.INTERNAL: RetryableError,
    Code.UNKNOWN: RetryableError,
    Code.DATA_LOSS: PredictorCrashed,
    Code.UNAUTHENTICATED: Unauthenticated,
    Code.PERMISSION_DENIED: Forbidden,
    Code.UNAVAILABLE: TeacherLost,
    Code.DEADLINE_EXCEEDED: DeadlineExceeded,
    Code.CANCELLED: TeacherLost,
}

#: Trailing metadata: milliseconds after which to try again. It is gRPC's own name, so clients that
#: retry by themselves go by it too.
PUSHBACK: Final = "grpc-retry-pushback-ms"
#: The header of an error over HTTP that names gRPC's status for it.
STATUS_HEADER: Final = "edl-status"
#: gRPC's words for a message above a side's limit. Its code says "try again", but the same bytes
#: will never fit.
_TOO_LARGE = "larger than max"
#: Details travel in a header, of which gRPC takes 8 KiB in all.
_MAX_DETAILS = 1000


def to_status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """What a server answers when it ends by `error`: the code, and a message for its details."""
    kinds = dict(_SENT)
    code = next(kinds[kind] for kind in type(error).__mro__ if kind in kinds)
    message = str(error) if isinstance(error, EdlError) else f"{type(error).__name__}: {error}"
    message = message.encode("utf-8", "replace").decode()
    return code, message if len(message) <= _MAX_DETAILS else message[: _MAX_DETAILS - 1] + "…"


def to_metadata(error: Exception) -> tuple[tuple[str, str], ...]:
    """What goes beside the status, as trailing metadata: when to try again."""
    after_s = error.retry_after_s if isinstance(error, RateLimited) else None
    return () if after_s is None else ((PUSHBACK, str(max(1, round(after_s * 1000)))),)


def from_status(
    code: grpc.StatusCode,
    details: str | None,
    metadata: Iterable[Sequence[str | bytes]] = (),
) -> EdlError:
    """The error that a client raises for a call that ended with `code`.

    Args:
        code: the status.
        details: its words.
        metadata: the trailing metadata, as pairs.

    Raises:
        ValueError: `code` is OK.
    """
    kind = _READ.get(code)
    if kind is None:
        raise ValueError(f"{code} is not an error")
    if code is Code.RESOURCE_EXHAUSTED and _TOO_LARGE in (details or ""):
        kind = RequestRefused
    if hint := handshake_hint(details or "") if code is Code.UNAVAILABLE else "":
        details = f"{details}; {hint}"
    error = kind(details or f"the peer answered {code.name} and nothing else")
    if isinstance(error, RateLimited):
        error.retry_after_s = _pushback_s(metadata)
    return error


def _pushback_s(metadata: Iterable[Sequence[str | bytes]]) -> float | None:
    said = next((value for name, value in metadata if name == PUSHBACK), "")
    # Below 0 a server says "never", of which we make no more than "I cannot say when".
    return int(said) / 1000 if said.isascii() and said.isdigit() and len(said) < 10 else None
