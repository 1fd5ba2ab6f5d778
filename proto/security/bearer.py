"""Puts a bearer token on every call of a channel, of gRPC's four kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from .certificates import Reloaded

_KEY = "authorization"


class _Details(NamedTuple):
    """A call's details as gRPC takes them back from an interceptor of a channel."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class BearerInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    def __init__(self, token: Reloaded[str]) -> None:
        self._token = token

    def _signed(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), (_KEY, f"Bearer {self._token.current()}"))
        signed = _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(signed, request)

    intercept_unary_unary: Any = _signed
    intercept_unary_stream: Any = _signed
    intercept_stream_unary: Any = _signed
    intercept_stream_stream: Any = _signed
