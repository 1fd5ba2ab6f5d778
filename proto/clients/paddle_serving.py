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
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import grpc

from ...errors import BadAnswer, EdlError, RequestRefused, TeacherLost, WireError
from ..datatypes import Array, whole
from ..paddle_serving import messages
from ..security import ClientSecurity, open_channel
from .client import Answer, Found, Request
from .oip_grpc import CHANNEL_OPTIONS, translated

_CHANNEL_OPTIONS = [
    *CHANNEL_OPTIONS,
    ("grpc.max_reconnect_backoff_ms", 1000),  # a server that starts again is found soon
]
_LOG_ID_DIGITS = 18


class _PaddleClient(ABC):
    """A `Client` of one kind of server: a channel with one method, of bytes; errors are ours.

    Args:
        address: host:port.
        security: as a proxy before it wants it; the server itself knows neither TLS nor tokens.

    Raises:
        UsageError: a file of `security` cannot be used.
    """

    METHOD: ClassVar[str]

    def __init__(self, address: str, security: ClientSecurity | None = None) -> None:
        self._channel = open_channel(address, security, _CHANNEL_OPTIONS)
        self._method: Any = self._channel.unary_unary(self.METHOD, None, None)

    def infer(self, request: Request, timeout_s: float) -> Answer:
        try:
            inputs = {name: whole(value) for name, value in request.inputs.items()}
            message = self._message(request, inputs, _log_id(request))
        except WireError as error:  # what cannot be sent here can be sent to none of its kind
            raise RequestRefused(f"it cannot be sent: {error}") from None
        request.check()
        reply = self._call(message, timeout_s)
        with _reading():
            outputs = self._outputs(reply)
        wanted = request.outputs or tuple(outputs)  # a pipeline gives all it has
        return Answer({name: outputs[name] for name in wanted if name in outputs})

    def close(self) -> None:
        self._channel.close()

    def _call(self, message: bytes, timeout_s: float) -> bytes:
        try:
            return bytes(self._method(message, timeout=timeout_s))
        except (grpc.RpcError, ValueError) as error:
            if _is_unimplemented(error):
                raise RequestRefused(
                    "it does not speak this protocol of Paddle Serving: try --protocol oip"
                ) from None
            raise _translated(error) from None

    @abstractmethod
    def _message(self, request: Request, inputs: Mapping[str, Array], log_id: int) -> bytes: ...

    @abstractmethod
    def _outputs(self, reply: bytes) -> Mapping[str, Array]: ...


class PipelineClient(_PaddleClient):
    """A `Client` of a pipeline server; it serves `model`, or any if that is empty."""

    METHOD = messages.PIPELINE

    def __init__(self, address: str, model: str, security: ClientSecurity | None = None) -> None:
        super().__init__(address, security)
        self._model = model

    def probe(self, timeout_s: float) -> Found:
        reply = self._call(messages.pipeline_probe(), timeout_s)
        with _reading():
            messages.check_pipeline_ready(reply)
        return Found()

    def _message(self, request: Request, inputs: Mapping[str, Array], log_id: int) -> bytes:
        return messages.pipeline_request(self._model, inputs, log_id)

    def _outputs(self, reply: bytes) -> Mapping[str, Array]:
        return messages.pipeline_outputs(reply)


class GeneralModelClient(_PaddleClient):
    """A `Client` of a C++ server, which serves one model and has no name for it."""

    METHOD = messages.GENERAL_MODEL

    def probe(self, timeout_s: float) -> Found:
        nothing: Any = self._channel.unary_unary(f"{self.METHOD}-nothing", None, None)
        try:
            nothing(b"", timeout=timeout_s)
        except (grpc.RpcError, ValueError) as error:
            if not _is_unimplemented(error):
                raise _translated(error) from None
        return Found()

    def _message(self, request: Request, inputs: Mapping[str, Array], log_id: int) -> bytes:
        return messages.general_model_request(inputs, request.outputs, log_id)

    def _outputs(self, reply: bytes) -> Mapping[str, Array]:
        return messages.general_model_outputs(reply)


def _log_id(request: Request) -> int:
    said = request.request_id.rpartition("#")[2]
    return int(said) if said.isascii() and said.isdigit() and len(said) <= _LOG_ID_DIGITS else 0


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise BadAnswer(str(error)) from None


def _is_unimplemented(error: Any) -> bool:
    return isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED


def _translated(error: Any) -> EdlError:
    if isinstance(error, ValueError):  # of gRPC, for a channel that was closed
        return TeacherLost("the connection is closed")
    return translated(error)
