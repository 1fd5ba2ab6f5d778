"""What a failed call of gRPC's means, whichever method was called."""

from __future__ import annotations

from typing import Any, Final

from ...errors import EdlError, TeacherLost
from ..status import from_status

#: gRPC's words for a peer that answers in anything else.
_NO_HTTP2: Final = "Failed parsing HTTP/2"


def translated(error: Any) -> EdlError:
    """The error of ours that a `grpc.RpcError` stands for."""
    if (details := error.details() or "") and _NO_HTTP2 in details:
        return TeacherLost(f"it speaks no gRPC; is it HTTP? Then write http:// ({details})")
    return from_status(error.code(), details, error.trailing_metadata() or ())
