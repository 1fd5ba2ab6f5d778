"""Why a request is refused, in one word for the counters; and what of it is the caller's doing."""

from __future__ import annotations

from typing import Final

from ..errors import (
    EdlError,
    Forbidden,
    RateLimited,
    RequestRefused,
    Unauthenticated,
    VersionMismatch,
    WireError,
    WrongInstance,
)

TOO_LARGE: Final = "too_large"


class Overloaded(RateLimited):
    """Every slot is taken."""


class TooLarge(RateLimited):
    """A request above what its method takes."""


_REASONS: Final[dict[type[Exception], str]] = {
    Unauthenticated: "unauthenticated",
    Forbidden: "forbidden",
    VersionMismatch: "version",
    WireError: "malformed",
    RequestRefused: "malformed",
    WrongInstance: "wrong_instance",
    Overloaded: "overloaded",
    TooLarge: TOO_LARGE,
    RateLimited: "rate_limited",
}
#: Every word there is, so that a counter stands at 0 before it first happens.
REASONS: Final = tuple(dict.fromkeys(_REASONS.values()))


def reason_of(error: EdlError) -> str:
    """The word for `error`; empty when nothing was refused: it failed, and may succeed later."""
    return next((_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS), "")
