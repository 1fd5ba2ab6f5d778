"""Clients of Paddle Serving's two servers, the pipeline server and the C++ server.

Both servers answer only inference requests, and do not describe their model. So a probe requests
something that does not exist: an unknown service of a pipeline server, or an unknown method of a
C++ server. Both servers refuse this without running the model, which may be busy. gRPC's status of
an inference is OK even if the inference failed; the error number in the answer has to be checked.

Elements are sent in one of three forms: single numbers in the field for their type, raw bytes (C++
server), or the bytes of `.npy` files (pipeline server). A pipeline server accepts `.npy` files for
any dtype, so our requests to it use them; answers are read in every form. Answers as text are
refused, because they would have to be evaluated. A `.npy` file could hold pickled objects, which
execute code when they are read, so only files of numbers are written and read.

The messages of the C++ server follow its definition and are tested against the client that Paddle
Serving ships, but not against a running C++ server.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from ...runtime.errors import (
    BadAnswer,
    RequestRefused,
    RetryableError,
    TeacherError,
    TeacherLost,
    WireError,
)
from ..arena import Array
from ..datatypes import as_one_array, datatype_of, dtype_of, from_bytes, from_elements, to_bytes
from ..paddle_serving import general_model_pb2 as cpp
from ..paddle_serving import pipeline_pb2 as pb
from ..security.client_connections import open_channel
from ..security.credentials import ClientSecurity
from . import LabelRequest, LabelResponse, ModelDescription
from .oip_grpc import CHANNEL_OPTIONS, error_from_rpc

#: Element type of a tensor whose bytes are a .npy file (pipeline servers only).
NPY: Final = 13


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type of Paddle Serving.

    Attributes:
        datatype: name in the Open Inference Protocol.
        field: name of the repeated field of `Tensor` that has a number for each element.
        as_bits: the numbers are the bits of the elements, not their values.
        raw: in messages of the C++ server, `tensor_content` has the elements as bytes.
    """

    datatype: str
    field: str
    as_bits: bool = False
    raw: bool = False


TYPES: Final[dict[int, ElementType]] = {
    0: ElementType("INT64", "int64_data"),
    1: ElementType("FP32", "float_data"),
    2: ElementType("INT32", "int_data"),
    3: ElementType("FP64", "float64_data"),
    4: ElementType("INT16", "int_data", raw=True),
    5: ElementType("FP16", "float_data", raw=True),
    6: ElementType("BF16", "uint32_data", as_bits=True, raw=True),
    7: ElementType("UINT8", "uint32_data", raw=True),
    8: ElementType("INT8", "int_data", raw=True),
    9: ElementType("BOOL", "bool_data"),
}
#: The `elem_type` of each datatype.
ELEM_TYPES: Final = {kind.datatype: number for number, kind in TYPES.items()}


def type_of(number: int) -> ElementType:
    """Return the element type with this number; raises WireError if it is unknown."""
    kind = TYPES.get(number)
    if kind is None:
        raise WireError(f"elem_type {number} is not known; known are {sorted(TYPES)} and {NPY}")
    return kind


def from_numbers(kind: ElementType, numbers: Sequence[Any], shape: Sequence[int]) -> Array:
    """Build a read-only array from the numbers of a repeated field.

    Raises:
        WireError: the count of numbers does not fit the shape, or a number exceeds the range of the
            type.
    """
    if kind.as_bits:
        return from_elements(numbers, "UINT16", shape).view(dtype_of(kind.datatype))
    return from_elements(numbers, kind.datatype, shape)


#: Kinds of dtypes that may be sent as `.npy` files. bfloat16 would arrive as raw bytes.
_NPY_DTYPE_KINDS = "biuf"


def write_npy(array: Array) -> bytes:
    """Return an array as a `.npy` file; raises WireError for other dtypes than numbers."""
    if array.dtype.kind not in _NPY_DTYPE_KINDS:
        kind = "objects or bytes" if array.dtype.kind in "OSU" else f"dtype {array.dtype.name}"
        raise WireError(f"arrays of {kind} cannot be sent to Paddle Serving")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def read_npy(raw: bytes) -> Array:
    """Return the array in a `.npy` file as a read-only view of `raw`.

    Raises:
        WireError: `raw` is not such a file, holds anything but numbers, or has the wrong length.
    """
    file = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran_order, dtype = read_header(file)
    except Exception as error:  # numpy parses the header as an expression, which may raise anything
        raise WireError(
            f"this is not a .npy file of a known version: {type(error).__name__}"
        ) from None
    if dtype.kind not in _NPY_DTYPE_KINDS or dtype.byteorder == ">":
        raise WireError(
            f"a .npy file of dtype {dtype.str} is refused: only numbers, little-endian, are read, "
            "and nothing is ever unpickled"
        )
    elements = memoryview(raw)[file.tell() :]
    if fortran_order:
        return from_bytes(elements, datatype_of(dtype), shape[::-1]).T
    return from_bytes(elements, datatype_of(dtype), shape)


#: The method of each server.
PIPELINE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
GENERAL_MODEL = "/baidu.paddle_serving.predictor.general_model.GeneralModelService/inference"

_PROBE_SERVICE = "edl-probe"
#: Error number of a server that has no service with the requested name.
NO_SERVICE = 3002
#: First error number of each range, and the error of the range; a range ends where the next begins.
_ERROR_OF_RANGE: tuple[tuple[int, type[TeacherError]], ...] = (
    (0, RetryableError),
    (50, RequestRefused),  # raised by an Op of the pipeline: this request is wrong
    (100, RetryableError),
    (3000, RequestRefused),  # not implemented
    (3001, TeacherLost),  # the pipeline has been closed
    (NO_SERVICE, RequestRefused),
    (3003, RetryableError),
    (5000, RequestRefused),  # inputs that the model does not accept
    (6000, RetryableError),  # the server's own timeout
    (7000, RequestRefused),  # types that the model does not accept
    (8000, RetryableError),  # packing failed; the cause is unknown
    (9000, RequestRefused),  # the run failed because of the inputs, except for _TRANSIENT_TEXTS
)
#: Parts of Paddle's error texts for failures that do not depend on the inputs and may be temporary.
_TRANSIENT_TEXTS = (
    "ResourceExhausted",
    "Unavailable",
    "ExecutionTimeout",
    "out of memory",
    "bad_alloc",
)


def pipeline_request(service: str, inputs: Mapping[str, Array], log_id: int = 0) -> bytes:
    """Serialise a request to a pipeline server.

    Args:
        service: the name that the server was started with; empty matches any.
        inputs: arrays of numbers by name, but not bfloat16.
        log_id: number of the request in the server's log, 0 to 2^63 - 1.

    Raises:
        WireError: an array cannot be sent.
        ValueError: a name is not text.
    """
    tensors = [
        pb.Tensor(name=name, elem_type=NPY, shape=array.shape, byte_data=write_npy(array))
        for name, array in inputs.items()
    ]
    return pb.Request(name=service, logid=log_id, tensors=tensors).SerializeToString()


def pipeline_outputs(data: bytes) -> dict[str, Array]:
    """Decode the outputs of a pipeline server's answer, read-only.

    Raises:
        TeacherError: `err_no` reports a failure; see `check_error`.
        WireError: the answer cannot be decoded, is empty, or holds text instead of tensors.
    """
    response = _parse(pb.Response, data, "a pipeline server")
    check_error(response.err_no, response.err_msg)
    if response.value and not response.tensors:
        raise WireError(
            "the server answers with text, which is never evaluated here: have its ResponseOp pack "
            "tensors, as docs/how-to/foreign-teachers.md shows"
        )
    if not response.tensors:
        raise WireError("the answer holds no tensors")
    return _read_outputs(
        ((tensor.name, tensor) for tensor in response.tensors), _read_pipeline_tensor
    )


def general_model_request(
    inputs: Mapping[str, Array], outputs: Sequence[str] = (), log_id: int = 0
) -> bytes:
    """Serialise a request to a C++ server.

    Args:
        inputs: arrays by name, which is also used as the alias.
        outputs: aliases of the requested outputs; empty for all.
        log_id: number of the request in the server's log, 0 to 2^63 - 1.

    Raises:
        WireError: a dtype cannot be sent.
        ValueError: a name is not text.
    """
    tensors = [_cpp_tensor(name, array) for name, array in inputs.items()]
    request = cpp.Request(tensor=tensors, fetch_var_names=outputs, log_id=log_id)
    return request.SerializeToString()


def general_model_outputs(data: bytes) -> dict[str, Array]:
    """Decode the outputs of a C++ server's answer by their aliases, read-only.

    Raises:
        TeacherError: `err_no` reports a failure; see `check_error`.
        WireError: the answer cannot be decoded, is empty, or holds outputs of several models.
    """
    response = _parse(cpp.Response, data, "a general model service")
    check_error(response.err_no, response.err_msg)
    if len(response.outputs) != 1 or not response.outputs[0].tensor:
        raise WireError(
            f"the answer holds outputs of {len(response.outputs)} models; outputs of one model "
            "are expected"
        )
    tensors = response.outputs[0].tensor
    return _read_outputs(
        ((tensor.alias_name or tensor.name, tensor) for tensor in tensors), _read_cpp_tensor
    )


def check_error(number: int, message: str) -> None:
    """Raise the error for an error number other than 0.

    Raises:
        RequestRefused: the server will never answer this request.
        TeacherLost: the server has closed.
        RetryableError: any other failure.
    """
    if number == 0:
        return
    kind = [error for first, error in _ERROR_OF_RANGE if first <= max(number, 0)][-1]
    if any(part in message for part in _TRANSIENT_TEXTS):
        kind = RetryableError
    text = " ".join(message.split())[:500] or "no message"
    raise kind(f"Paddle Serving answers err_no {number}: {text}")


def _parse(kind: Any, data: bytes, server: str) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise WireError(f"this is not an answer of {server}: {error}") from None


def _read_outputs(
    tensors: Iterable[tuple[str, Any]], read: Callable[[Any], Array]
) -> dict[str, Array]:
    outputs: dict[str, Array] = {}
    for name, tensor in tensors:
        if not name or name in outputs or tensor.lod:
            raise WireError(
                f"output {name!r:.60} is nameless, comes twice or has a varying length (lod)"
            )
        outputs[name] = read(tensor)
    return outputs


def _read_pipeline_tensor(tensor: pb.Tensor) -> Array:
    if tensor.elem_type == NPY:
        return read_npy(tensor.byte_data)
    kind = type_of(tensor.elem_type)
    return from_numbers(kind, getattr(tensor, kind.field), tensor.shape)


def _cpp_tensor(name: str, array: Array) -> cpp.Tensor:
    datatype = datatype_of(array.dtype)
    number = ELEM_TYPES.get(datatype)
    if number is None:
        raise WireError(f"{datatype} cannot be sent to Paddle Serving")
    tensor = cpp.Tensor(name=name, alias_name=name, elem_type=number, shape=array.shape)
    kind = TYPES[number]
    if kind.raw:
        tensor.tensor_content = bytes(to_bytes(array))
    else:
        getattr(tensor, kind.field).extend(array.ravel().tolist())
    return tensor


def _read_cpp_tensor(tensor: cpp.Tensor) -> Array:
    kind = type_of(tensor.elem_type)
    if kind.raw and tensor.tensor_content:
        return from_bytes(memoryview(tensor.tensor_content), kind.datatype, tuple(tensor.shape))
    return from_numbers(kind, getattr(tensor, kind.field), tensor.shape)


_CHANNEL_OPTIONS = [
    *CHANNEL_OPTIONS,
    ("grpc.max_reconnect_backoff_ms", 1000),  # a restarted server is found soon
]
_LOG_ID_DIGITS = 18


class _PaddleClient:
    """A `TeacherClient` of one kind of server, without `probe`.

    Args:
        address: host:port.
        method: path of the server's inference method.
        encode: serialises a request; its second argument has each input as one array.
        decode: returns the outputs in an answer.
        security: credentials for a proxy; the server itself supports neither TLS nor tokens.

    Raises:
        UsageError: a file of `security` cannot be used.
    """

    def __init__(
        self,
        address: str,
        method: str,
        encode: Callable[[LabelRequest, Mapping[str, Array]], bytes],
        decode: Callable[[bytes], dict[str, Array]],
        security: ClientSecurity | None,
    ) -> None:
        self._channel = open_channel(address, security, _CHANNEL_OPTIONS)
        self._method: Any = self._channel.unary_unary(method, None, None)
        self._encode = encode
        self._decode = decode

    def infer(self, request: LabelRequest, timeout_s: float) -> LabelResponse:
        try:
            inputs = {name: as_one_array(value) for name, value in request.inputs.items()}
            message = self._encode(request, inputs)
        except (WireError, ValueError) as error:  # the protocol cannot carry this request
            raise RequestRefused(f"the request cannot be sent: {error}") from None
        request.check()
        reply = self._call(message, timeout_s)
        with _wire_error_as_bad_answer():
            outputs = self._decode(reply)
        names = request.outputs or tuple(outputs)  # a pipeline server returns all outputs
        return LabelResponse({name: outputs[name] for name in names if name in outputs})

    def close(self) -> None:
        self._channel.close()

    def _call(self, message: bytes, timeout_s: float) -> bytes:
        try:
            return bytes(self._method(message, timeout=timeout_s))
        except (grpc.RpcError, ValueError) as error:
            if _is_unimplemented(error):
                raise RequestRefused(
                    "the server does not speak this protocol of Paddle Serving: try --protocol oip"
                ) from None
            raise error_from_rpc(error) from None


class PipelineClient(_PaddleClient):
    """A `TeacherClient` of a pipeline server that serves `model`; an empty name matches any."""

    def __init__(self, address: str, model: str, security: ClientSecurity | None = None) -> None:
        def encode(request: LabelRequest, inputs: Mapping[str, Array]) -> bytes:
            return pipeline_request(model, inputs, _log_id(request))

        super().__init__(address, PIPELINE, encode, pipeline_outputs, security)

    def probe(self, timeout_s: float) -> ModelDescription:
        # No server has such a service, so the model does not run.
        reply = self._call(pb.Request(name=_PROBE_SERVICE).SerializeToString(), timeout_s)
        with _wire_error_as_bad_answer():
            response = _parse(pb.Response, reply, "a pipeline server")
        if response.err_no != NO_SERVICE:
            check_error(response.err_no, response.err_msg)
        return ModelDescription()


class GeneralModelClient(_PaddleClient):
    """A `TeacherClient` of a C++ server, which serves one model without a name."""

    def __init__(self, address: str, security: ClientSecurity | None = None) -> None:
        def encode(request: LabelRequest, inputs: Mapping[str, Array]) -> bytes:
            return general_model_request(inputs, request.outputs, _log_id(request))

        super().__init__(address, GENERAL_MODEL, encode, general_model_outputs, security)

    def probe(self, timeout_s: float) -> ModelDescription:
        unknown: Any = self._channel.unary_unary(f"{GENERAL_MODEL}-nothing", None, None)
        try:
            unknown(b"", timeout=timeout_s)
        except (grpc.RpcError, ValueError) as error:
            if not _is_unimplemented(error):
                raise error_from_rpc(error) from None
        return ModelDescription()


def _log_id(request: LabelRequest) -> int:
    text = request.request_id.rpartition("#")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LOG_ID_DIGITS else 0


@contextlib.contextmanager
def _wire_error_as_bad_answer() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise BadAnswer(str(error)) from None


def _is_unimplemented(error: Any) -> bool:
    return isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED
