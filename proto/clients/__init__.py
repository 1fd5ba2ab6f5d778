"""How to ask a teacher: one `TeacherClient` protocol, and one file for each language that teachers speak.

Readers, sidecars of foreign servers and managers ask through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from ...errors import InputsOverwritten, UsageError, WireError
from ..datatypes import Array, Input, Parameter, TensorSpec, dtype_of
from ..protocols import OIP, PADDLE_SERVING, PADDLE_SERVING_CPP, PROTOCOLS, check_dialled
from ..security import ClientSecurity


def input_mismatch(declared: Sequence[TensorSpec], inputs: Mapping[str, Input]) -> str:
    """In words, how a batch differs from what a server says its model takes.

    KServe and MLServer hand any tensor to the model, and call what it raises a failure of their
    own, as if another try could go well.

    Args:
        declared: inputs of the model; empty where the server does not say.
        inputs: the batch.

    Returns:
        the first difference; empty where there is none. Of the shape of an input whose number of
        dimensions is another than declared nothing is said: some servers leave out the batch's. Of
        an input whose declared datatype does not exist nothing is said at all.
    """
    for spec in declared:
        array = inputs.get(spec.name)
        if array is None:
            return f"the model takes an input {spec.name!r}, the batch has {list(inputs)}"
        try:
            wanted = dtype_of(spec.datatype)
        except WireError:
            continue
        if array.dtype.newbyteorder("=") != wanted:
            return f"input {spec.name!r} is declared as {wanted}, the batch has {array.dtype}"
        if array.ndim == len(spec.shape) and not spec.admits(array.shape):
            shape = list(array.shape)
            return f"input {spec.name!r} is declared as {list(spec.shape)}, the batch has {shape}"
    return ""


#: The extension of servers that tell how a model is configured, as Triton does.
MODEL_CONFIGURATION: Final = "model_configuration"

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model that is ready, as its server describes it; a foreign server may name nothing.

    Attributes:
        inputs: in the model's order; empty where the server does not say.
        outputs: the same.
        most_rows: of a batch that the model takes at most; None where the server does not say.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    most_rows: int | None = None


class LabelRequest(NamedTuple):
    """One batch to be labelled.

    Attributes:
        inputs: arrays by input name, the batch along axis 0, each in one piece or several; they
            must not change meanwhile.
        outputs: names of the outputs wanted; empty: every one.
        request_id: for logs; a server may repeat it.
        parameters: named values beside the tensors; a server that knows none ignores them, and so
            may a protocol that has no place for them.
        output_parameters: the same for single outputs, by their names.
        is_current: whether the inputs have not changed; asked once they are sent, or copied.
    """

    inputs: Mapping[str, Input]
    outputs: tuple[str, ...] = ()
    request_id: str = ""
    parameters: Mapping[str, Parameter] = _NOTHING
    output_parameters: Mapping[str, Mapping[str, Parameter]] = _NOTHING
    is_current: Callable[[], bool] = _always

    def check(self) -> None:
        """Raise InputsOverwritten where the inputs have changed."""
        if not self.is_current():
            raise InputsOverwritten("the batch was over before it was sent")


@dataclass(frozen=True, slots=True)
class LabelResponse:
    """What a server made of a batch; nothing of it has been checked but that it can be read.

    Attributes:
        outputs: read-only arrays by output name, in the server's order.
        parameters: what the server says beside them; empty where it says nothing.
        output_parameters: the same of single outputs that bear any.
    """

    outputs: Mapping[str, Array]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    output_parameters: Mapping[str, Mapping[str, Parameter]] = field(default_factory=dict)


class TeacherClient(Protocol):
    """A connection to one model at one server. Any thread may ask, several at once.

    It is made by `open_client` without waiting for the server; every method raises errors of
    `edl.errors` only.
    """

    def probe(self, timeout_s: float) -> ModelDescription:
        """Ask whether the model is ready, and what it takes and gives.

        Raises:
            RetryableError: it is not ready yet.
            TeacherLost: nobody answers, or not in time.
            AccessError: the server does not let us in.
            RequestRefused: the server has no such model, or does not speak the protocol.
            BadAnswer: it speaks nonsense.
        """
        ...

    def infer(self, request: LabelRequest, timeout_s: float) -> LabelResponse:
        """Have a batch labelled.

        Raises:
            RequestRefused: the server will never label it, or it cannot be sent.
            RetryableError: it may later, or another server may.
            TeacherLost: the connection ended, or the answer did not come in time.
            WrongInstance: another server answers there.
            AccessError: the server does not let us in.
            BadAnswer: the answer cannot be read.
        """
        ...

    def close(self) -> None:
        """End the connection; requests in flight end as TeacherLost. Idempotent."""
        ...


__all__ = ["Answer", "Client", "Found", "Request", "open_client"]


def open_client(
    protocol: str,
    address: str,
    model: str,
    security: ClientSecurity | None = None,
) -> TeacherClient:
    """A client of one model at one server; it connects when it is first used.

    Args:
        protocol: as the registry names it; empty: `oip`.
        address: host:port or grpc://host:port for gRPC; http://host:port or https://host:port for
            HTTP, which only `oip` has.
        model: its name at the server.
        security: how to prove who calls; None: neither TLS nor token.

    Raises:
        UsageError: there is no such protocol, the address is none, or a file of `security` cannot
            be used.
    """
    if protocol not in ("", *PROTOCOLS):
        raise UsageError(f"no client speaks {protocol!r:.40}: known are {', '.join(PROTOCOLS)}")
    scheme, _, rest = address.rpartition("://")
    if scheme in ("http", "https") and protocol in ("", OIP):
        from .oip_http import OipHttpClient

        return OipHttpClient(address, model, security)
    check_dialled(protocol, address)
    if protocol in (PADDLE_SERVING, PADDLE_SERVING_CPP):
        from .paddle_serving import GeneralModelClient, PipelineClient

        if protocol == PADDLE_SERVING:
            return PipelineClient(rest, model, security)
        return GeneralModelClient(rest, security)
    from .oip_grpc import OipGrpcClient

    return OipGrpcClient(rest, model, security)
