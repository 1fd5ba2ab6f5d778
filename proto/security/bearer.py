"""Interceptors that put a bearer token on every call of a channel, of gRPC's four kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio

from .reloading import Reloaded

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
    """For `grpc.Channel`."""

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


class _AioBearer:
    """For `grpc.aio.Channel`, which wants one object for each kind of call."""

    def __init__(self, token: Reloaded[str]) -> None:
        self._token = token

    async def _signed(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        metadata.add(_KEY, f"Bearer {self._token.current()}")
        return await continuation(details._replace(metadata=metadata), request)


class _UnaryUnary(_AioBearer, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_unary: Any = _AioBearer._signed


class _UnaryStream(_AioBearer, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_unary_stream: Any = _AioBearer._signed


class _StreamUnary(_AioBearer, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_unary: Any = _AioBearer._signed


class _StreamStream(_AioBearer, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    intercept_stream_stream: Any = _AioBearer._signed


def aio_interceptors(token: Reloaded[str]) -> Any:
    """What signs every call of a channel in a loop."""
    return [kind(token) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)]
