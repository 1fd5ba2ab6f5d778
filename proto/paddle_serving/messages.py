"""Messages of Paddle Serving: requests are made here, answers are read.

To a pipeline server inputs go as .npy files, which it takes for any dtype; outputs are read in
whatever form of tensor they come. What comes as text is refused: it would have to be evaluated.

The C++ server's protocol is written from its definition and tested against the client that Paddle
Serving ships; not verified against a running C++ server.

Both servers answer OK by gRPC whatever has happened: the error number in the answer is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from ...errors import RequestRefused, RetryableError, TeacherError, TeacherLost, WireError
from ..datatypes import Array, datatype_of, from_bytes, to_bytes
from . import general_model_pb2 as cpp
from . import pipeline_pb2 as pb
from .arrays import NPY, NUMBERS, TYPES, from_numbers, read_npy, type_of, write_npy

#: The method of each server.
PIPELINE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
GENERAL_MODEL = "/baidu.paddle_serving.predictor.general_model.GeneralModelService/inference"

_NOBODY = "edl-is-anybody-there"
#: A server has no service of the name asked for.
NO_SERVICE = 3002
#: First number of each family and what it is read as; each ends where the next one begins.
_FAMILIES: tuple[tuple[int, type[TeacherError]], ...] = (
    (0, RetryableError),
    (50, RequestRefused),  # an operator's own: it says that this request is wrong
    (100, RetryableError),
    (3000, RequestRefused),  # not implemented
    (3001, TeacherLost),  # the pipeline has been closed
    (NO_SERVICE, RequestRefused),
    (3003, RetryableError),
    (5000, RequestRefused),  # inputs that the model does not take
    (6000, RetryableError),  # too late for the server's own limit
    (7000, RequestRefused),  # types that it does not take
    (8000, RetryableError),  # packing, which tells nothing of whose fault it is
    (9000, RequestRefused),  # a run that failed: of the values that were given, but for _MAY_PASS
)
#: What Paddle says of failures that other values would meet as well, and that may be over later.
_MAY_PASS = ("ResourceExhausted", "Unavailable", "ExecutionTimeout", "out of memory", "bad_alloc")


def pipeline_request(service: str, inputs: Mapping[str, Array], log_id: int = 0) -> bytes:
    """A serialised request to a pipeline server.

    Args:
        service: the name that the server was started with; empty: whichever it is.
        inputs: arrays by name; numbers, but not bfloat16.
        log_id: what the server's own log calls the request, 0 to 2^63 - 1.

    Raises:
        WireError: an array cannot be sent, or a name is not text.
    """
    try:
        tensors = [
            pb.Tensor(name=name, elem_type=NPY, shape=array.shape, byte_data=write_npy(array))
            for name, array in inputs.items()
        ]
        return pb.Request(name=service, logid=log_id, tensors=tensors).SerializeToString()
    except ValueError as error:  # protobuf: a number or a text that a field has no place for
        raise WireError(f"the request cannot be sent: {error}") from None


def pipeline_outputs(data: bytes) -> dict[str, Array]:
    """The outputs of a pipeline server's serialised answer, read-only.

    Raises:
        TeacherError: the server says by `err_no` that it has no answer; see `check_error`.
        WireError: the answer cannot be read, holds nothing, or holds text instead of tensors.
    """
    response = _parsed(pb.Response, data, "a pipeline server")
    check_error(response.err_no, response.err_msg)
    if response.value and not response.tensors:
        raise WireError(
            "the server answers with text, which is never evaluated here: have its ResponseOp pack "
            "tensors, as docs/paddle-serving.md shows"
        )
    if not response.tensors:
        raise WireError("the answer holds no tensors")
    return _outputs(((tensor.name, tensor) for tensor in response.tensors), _of_pipeline)


def pipeline_probe() -> bytes:
    """A request that costs nothing: of a service that no server has."""
    return pb.Request(name=_NOBODY).SerializeToString()


def check_pipeline_ready(data: bytes) -> None:
    """Whether the answer to a probe comes from a server that is up: it knows no such service.

    Raises:
        TeacherError: it says something else.
        WireError: the answer cannot be read.
    """
    response = _parsed(pb.Response, data, "a pipeline server")
    if response.err_no != NO_SERVICE:
        check_error(response.err_no, response.err_msg)


def general_model_request(
    inputs: Mapping[str, Array], outputs: Sequence[str] = (), log_id: int = 0
) -> bytes:
    """A serialised request to a C++ server.

    Args:
        inputs: arrays by name, which is taken for the alias too.
        outputs: aliases of the outputs wanted; empty: every one.
        log_id: what the server's own log calls the request, 0 to 2^63 - 1.

    Raises:
        WireError: a dtype has no number there, or a name is not text.
    """
    try:
        tensors = [_for_cpp(name, array) for name, array in inputs.items()]
        request = cpp.Request(tensor=tensors, fetch_var_names=outputs, log_id=log_id)
        return request.SerializeToString()
    except ValueError as error:  # protobuf: a number or a text that a field has no place for
        raise WireError(f"the request cannot be sent: {error}") from None


def general_model_outputs(data: bytes) -> dict[str, Array]:
    """The outputs of a C++ server's serialised answer by their aliases, read-only.

    Raises:
        TeacherError: the server says by `err_no` that it has no answer; see `check_error`.
        WireError: the answer cannot be read, holds nothing, or that of several models.
    """
    response = _parsed(cpp.Response, data, "a general model service")
    check_error(response.err_no, response.err_msg)
    if len(response.outputs) != 1 or not response.outputs[0].tensor:
        raise WireError(
            f"the answer holds outputs of {len(response.outputs)} models, and those of one "
            "are expected"
        )
    tensors = response.outputs[0].tensor
    return _outputs(((tensor.alias_name or tensor.name, tensor) for tensor in tensors), _of_cpp)


def check_error(number: int, message: str) -> None:
    """Do nothing for 0; raises what another number means: the server has no answer.

    Raises:
        RequestRefused: it will never have one to this request.
        TeacherLost: it has closed.
        RetryableError: anything else.
    """
    if number == 0:
        return
    kind = [family for first, family in _FAMILIES if first <= max(number, 0)][-1]
    if any(words in message for words in _MAY_PASS):
        kind = RetryableError
    said = " ".join(message.split())[:500] or "nothing else"
    raise kind(f"Paddle Serving answers err_no {number}: {said}")


def _parsed(kind: Any, data: bytes, server: str) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise WireError(f"no answer of {server}: {error}") from None


def _outputs(tensors: Iterable[tuple[str, Any]], read: Callable[[Any], Array]) -> dict[str, Array]:
    outputs: dict[str, Array] = {}
    for name, tensor in tensors:
        if not name or name in outputs or tensor.lod:
            raise WireError(
                f"output {name!r:.60} is nameless, comes twice or has a varying length (lod)"
            )
        outputs[name] = read(tensor)
    return outputs


def _of_pipeline(tensor: pb.Tensor) -> Array:
    if tensor.elem_type == NPY:
        return read_npy(tensor.byte_data)
    kind = type_of(tensor.elem_type)
    return from_numbers(kind, getattr(tensor, kind.field), tensor.shape)


def _for_cpp(name: str, array: Array) -> cpp.Tensor:
    datatype = datatype_of(array.dtype)
    number = NUMBERS.get(datatype)
    if number is None:
        raise WireError(f"{datatype} cannot be sent to Paddle Serving")
    tensor = cpp.Tensor(name=name, alias_name=name, elem_type=number, shape=array.shape)
    kind = TYPES[number]
    if kind.raw:
        tensor.tensor_content = bytes(to_bytes(array))
    else:
        getattr(tensor, kind.field).extend(array.ravel().tolist())
    return tensor


def _of_cpp(tensor: cpp.Tensor) -> Array:
    kind = type_of(tensor.elem_type)
    if kind.raw and tensor.tensor_content:
        return from_bytes(memoryview(tensor.tensor_content), kind.datatype, tuple(tensor.shape))
    return from_numbers(kind, getattr(tensor, kind.field), tensor.shape)
