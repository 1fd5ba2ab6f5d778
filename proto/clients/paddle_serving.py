"""Clients of Paddle Serving: its pipeline server, and its C++ server.

Neither has anything to ask for but an inference, and neither says what its model takes. Whether one
is up is found by asking for what it has not: a pipeline server for a service of another name, a C++
server for a method. Both answer without the model, which may be busy. Both say OK by gRPC whatever
has happened: the error number in the answer is what counts.

The C++ server's client is tested against the client that Paddle Serving ships, in reverse. It is
not verified against a running C++ server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from ...errors import BadAnswer, EdlError, RequestRefused, TeacherLost, WireError
from ..datatypes import Array, all_whole
from ..paddle_serving import general_model, pipeline
from ..security import ClientSecurity, open_channel
from .client import Answer, Found, Request
from .oip_grpc import translated

_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, closed with the client
    ("grpc.enable_retries", 0),  # who asks decides what is resent, and counts it
    ("grpc.max_reconnect_backoff_ms", 1000),  # a server that starts again is found soon
]
_LOG_ID_DIGITS = 18


class PipelineClient:
    """A `Client` of a pipeline server.

    Args:
        address: host:port.
        model: the name that the service was started with; empty: whichever it is.
        security: as a proxy before it wants it; the server itself knows neither TLS nor tokens.

    Raises:
        UsageError: a file of `security` cannot be used.
    """

    def __init__(self, address: str, model: str, security: ClientSecurity | None = None) -> None:
        self._model = model
        self._connection = _Connection(address, security, pipeline.METHOD)

    def probe(self, timeout_s: float) -> Found:
        reply = self._connection.call(pipeline.encode_probe(), timeout_s)
        with _reading():
            pipeline.check_ready(reply)
        return Found()

    def infer(self, request: Request, timeout_s: float) -> Answer:
        with _writing():
            log_id = _log_id(request)
            message = pipeline.encode_request(self._model, all_whole(request.inputs), log_id)
        request.check()
        reply = self._connection.call(message, timeout_s)
        with _reading():
            return _answer(request, pipeline.decode_response(reply))

    def close(self) -> None:
        self._connection.close()


class GeneralModelClient:
    """A `Client` of a C++ server, which serves one model and has no name for it.

    Args:
        address: host:port.
        security: as of `PipelineClient`.

    Raises:
        UsageError: a file of `security` cannot be used.
    """

    def __init__(self, address: str, security: ClientSecurity | None = None) -> None:
        self._connection = _Connection(address, security, general_model.METHOD)

    def probe(self, timeout_s: float) -> Found:
        self._connection.check_listens(timeout_s)
        return Found()

    def infer(self, request: Request, timeout_s: float) -> Answer:
        with _writing():
            log_id = _log_id(request)
            inputs = all_whole(request.inputs)
            message = general_model.encode_request(inputs, request.outputs, log_id)
        request.check()
        reply = self._connection.call(message, timeout_s)
        with _reading():
            return _answer(request, general_model.decode_response(reply))

    def close(self) -> None:
        self._connection.close()


class _Connection:
    """A channel with one method, of bytes; errors are ours."""

    def __init__(self, address: str, security: ClientSecurity | None, method: str) -> None:
        self._method_name = method
        self._channel = open_channel(address, security, _CHANNEL_OPTIONS)
        self._method: Any = self._channel.unary_unary(method, None, None)

    def call(self, message: bytes, timeout_s: float) -> bytes:
        try:
            return bytes(self._method(message, timeout=timeout_s))
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed
            if _code(error) is grpc.StatusCode.UNIMPLEMENTED:
                raise RequestRefused(
                    "it does not speak this protocol of Paddle Serving: try --protocol oip"
                ) from None
            raise _translated(error) from None

    def check_listens(self, timeout_s: float) -> None:
        """Raise unless a server of this protocol is there, without having it do anything."""
        nothing: Any = self._channel.unary_unary(f"{self._method_name}-nothing", None, None)
        try:
            nothing(b"", timeout=timeout_s)
        except (grpc.RpcError, ValueError) as error:
            if _code(error) is not grpc.StatusCode.UNIMPLEMENTED:
                raise _translated(error) from None

    def close(self) -> None:
        self._channel.close()


def _answer(request: Request, outputs: dict[str, Array]) -> Answer:
    """Those outputs that were wanted: a pipeline gives all it has."""
    wanted = request.outputs or tuple(outputs)
    return Answer({name: outputs[name] for name in wanted if name in outputs})


def _log_id(request: Request) -> int:
    said = request.request_id.rpartition("#")[2]
    return int(said) if said.isascii() and said.isdigit() and len(said) <= _LOG_ID_DIGITS else 0


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except WireError as error:  # what cannot be sent here can be sent to none of its kind
        raise RequestRefused(f"it cannot be sent: {error}") from None


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise BadAnswer(str(error)) from None


def _code(error: Any) -> grpc.StatusCode | None:
    return None if isinstance(error, ValueError) else error.code()


def _translated(error: Any) -> EdlError:
    if isinstance(error, ValueError):
        return TeacherLost("the connection is closed")
    return translated(error)
