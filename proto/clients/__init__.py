"""Clients of teachers: the protocol `TeacherClient`, and one module for each protocol on the wire.

Readers, managers, and the sidecars of foreign servers use them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from ...runtime.errors import InputsOverwritten, UsageError, WireError
from ..arena import Array
from ..datatypes import Input, Parameter, TensorSpec, dtype_of
from ..protocols import OIP, PADDLE_SERVING, PADDLE_SERVING_CPP, PROTOCOLS, check_address
from ..security.credentials import ClientSecurity


def input_mismatch(declared: Sequence[TensorSpec], inputs: Mapping[str, Input]) -> str:
    """Compare a batch with the inputs that a server declares for its model.

    KServe and MLServer pass any tensor to the model and report the model's exception as an error of
    the server, as if a second attempt could succeed. The comparison shows whether the batch is the
    cause.

    Args:
        declared: inputs of the model; empty if the server does not declare any.
        inputs: the batch.

    Returns:
        A text that describes the first difference; empty if there is none. Shapes are compared only
        if the number of dimensions is as declared, because some servers omit the batch dimension.
        Inputs with an unknown declared datatype are not compared.
    """
    for spec in declared:
        array = inputs.get(spec.name)
        if array is None:
            return f"the model takes an input {spec.name!r}, the batch has {list(inputs)}"
        try:
            expected = dtype_of(spec.datatype)
        except WireError:
            continue
        if array.dtype.newbyteorder("=") != expected:
            return f"input {spec.name!r} is declared as {expected}, the batch has {array.dtype}"
        if array.ndim == len(spec.shape) and not spec.admits(array.shape):
            shape = list(array.shape)
            return f"input {spec.name!r} is declared as {list(spec.shape)}, the batch has {shape}"
    return ""


#: Name of the extension with which servers such as Triton publish the configuration of a model.
MODEL_CONFIGURATION: Final = "model_configuration"

_NO_PARAMETERS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A server's description of a model that is ready. Foreign servers may omit any part.

    Attributes:
        inputs: in the model's order; empty if the server does not declare them.
        outputs: in the model's order; empty if the server does not declare them.
        most_rows: rows of the largest batch that the model accepts; None if unknown.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    most_rows: int | None = None


#: Message of `InputsOverwritten`.
OVERWRITTEN: Final = "the memory of the batch was reused before it was sent"


class LabelRequest(NamedTuple):
    """One batch to be labelled.

    Attributes:
        inputs: arrays by input name, the batch along axis 0, each in one piece or several. They
            must not change until the request has been sent.
        outputs: names of the requested outputs; empty for all.
        request_id: for logs; a server may repeat it.
        parameters: named values of the request. Servers ignore unknown ones, and some protocols
            cannot carry them.
        output_parameters: the parameters of single outputs, by name of the output.
        is_current: returns whether the inputs are still unchanged; called after they were sent or
            copied.
    """

    inputs: Mapping[str, Input]
    outputs: tuple[str, ...] = ()
    request_id: str = ""
    parameters: Mapping[str, Parameter] = _NO_PARAMETERS
    output_parameters: Mapping[str, Mapping[str, Parameter]] = _NO_PARAMETERS
    is_current: Callable[[], bool] = lambda: True

    def check(self) -> None:
        """Raise InputsOverwritten if the inputs have changed."""
        if not self.is_current():
            raise InputsOverwritten(OVERWRITTEN)


@dataclass(frozen=True, slots=True)
class LabelResponse:
    """A server's answer to a request, decoded but not checked.

    Attributes:
        outputs: read-only arrays by output name, in the server's order.
        parameters: named values of the answer; empty if it has none.
        output_parameters: the parameters of single outputs that have any, by name of the output.
        model_name: name of the model that answered; empty if the protocol does not state it.
        model_version: version of that model; empty if the protocol does not state it.
        request_id: id of the request if the server repeats it, else empty.
    """

    outputs: Mapping[str, Array]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    output_parameters: Mapping[str, Mapping[str, Parameter]] = field(default_factory=dict)
    model_name: str = ""
    model_version: str = ""
    request_id: str = ""


class TeacherClient(Protocol):
    """A client of one model at one server. Any thread may call it, several at once.

    `open_client` creates it without contacting the server. All methods raise only errors of
    `edl.runtime.errors`.
    """

    def probe(self, timeout_s: float) -> ModelDescription:
        """Ask whether the model is ready, and for its inputs and outputs.

        Raises:
            RetryableError: the model is not ready yet.
            TeacherLost: the server does not answer, answers too late, or does not speak gRPC.
            AccessError: the server refuses our credentials.
            RequestRefused: the server has no such model or method.
            BadAnswer: the answer is malformed, or not HTTP.
        """

    def infer(self, request: LabelRequest, timeout_s: float) -> LabelResponse:
        """Have a batch labelled.

        Raises:
            RequestRefused: the server will never label the batch, or the batch cannot be sent.
            RetryableError: this server may label the batch later, or another server may do so.
            TeacherLost: the connection ended, or the answer did not come in time.
            WrongInstance: another server instance answers at this address.
            AccessError: the server refuses our credentials.
            BadAnswer: the answer cannot be decoded.
            InputsOverwritten: the inputs changed before they were sent.
        """

    def close(self) -> None:
        """Close the connection; requests in flight raise TeacherLost. Idempotent."""


def open_client(
    protocol: str, address: str, model: str, security: ClientSecurity | None = None
) -> TeacherClient:
    """Create a client of one model at one server; it connects when it is first used.

    Args:
        protocol: as in the registry; empty means `oip`.
        address: host:port or grpc://host:port for gRPC; http://host:port or https://host:port for
            HTTP, with `oip` only.
        model: name of the model at the server; the C++ server of Paddle Serving ignores it.
        security: credentials for the server; None: no token, and TLS only with https://.

    Raises:
        UsageError: the protocol or the address is invalid, or a file of `security` cannot be used.
    """
    if protocol not in ("", *PROTOCOLS):
        raise UsageError(f"no client speaks {protocol!r:.40}: known are {', '.join(PROTOCOLS)}")
    scheme, _, rest = address.rpartition("://")
    if scheme in ("http", "https") and protocol in ("", OIP):
        from .oip_http import OipHttpClient

        return OipHttpClient(address, model, security)
    check_address(protocol, address)
    if protocol in (PADDLE_SERVING, PADDLE_SERVING_CPP):
        from .paddle_serving import GeneralModelClient, PipelineClient

        if protocol == PADDLE_SERVING:
            return PipelineClient(rest, model, security)
        return GeneralModelClient(rest, security)
    from .oip_grpc import OipGrpcClient

    return OipGrpcClient(rest, model, security)
