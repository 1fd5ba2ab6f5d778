"""Arrays in messages of the pipeline protocol: requests are made here, answers are read.

Inputs go as .npy files, which the server takes for any dtype; outputs are read in whatever form of
tensor they come. What comes as text is refused: it would have to be evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from ...errors import WireError
from ..datatypes import Array
from . import npy
from . import pipeline_pb2 as pb
from .elements import NPY, from_numbers, type_of
from .refusals import NO_SERVICE, check

_NOBODY = "edl-is-anybody-there"
METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


def encode_request(service: str, inputs: Mapping[str, Array], log_id: int = 0) -> bytes:
    """A serialised request.

    Args:
        service: the name that the server was started with; empty: whichever it is.
        inputs: arrays by name; numbers, but not bfloat16.
        log_id: what the server's own log calls the request, 0 to 2^63 - 1.

    Raises:
        WireError: an array cannot be sent, or a name is not text.
    """
    try:
        return pb.Request(
            name=service,
            logid=log_id,
            tensors=[
                pb.Tensor(name=name, elem_type=NPY, shape=array.shape, byte_data=npy.write(array))
                for name, array in inputs.items()
            ],
        ).SerializeToString()
    except ValueError as error:  # protobuf: a number or a text that a field has no place for
        raise WireError(f"the request cannot be sent: {error}") from None


def decode_response(data: bytes) -> dict[str, Array]:
    """The outputs of a serialised answer, read-only.

    Raises:
        TeacherError: the server says by `err_no` that it has no answer (`refusals.py`).
        WireError: the answer cannot be read, holds nothing, or holds text instead of tensors.
    """
    response = _parse(data)
    check(response.err_no, response.err_msg)
    if response.value and not response.tensors:
        raise WireError(
            "the server answers with text, which is never evaluated here: have its ResponseOp pack "
            "tensors, as docs/paddle-serving.md shows"
        )
    outputs: dict[str, Array] = {}
    for tensor in response.tensors:
        if not tensor.name or tensor.name in outputs or tensor.lod:
            raise WireError(
                f"output {tensor.name!r:.60} is nameless, comes twice or has a varying length (lod)"
            )
        outputs[tensor.name] = _array(tensor)
    if not outputs:
        raise WireError("the answer holds no tensors")
    return outputs


def encode_probe() -> bytes:
    """A request that costs nothing: of a service that no server has."""
    return pb.Request(name=_NOBODY).SerializeToString()


def check_ready(data: bytes) -> None:
    """Whether the answer to a probe comes from a server that is up: it knows no such service.

    Raises:
        TeacherError: it says something else.
        WireError: the answer cannot be read.
    """
    response = _parse(data)
    if response.err_no != NO_SERVICE:
        check(response.err_no, response.err_msg)


def _parse(data: bytes) -> pb.Response:
    try:
        return pb.Response.FromString(data)
    except DecodeError as error:
        raise WireError(f"no answer of a pipeline server: {error}") from None


def _array(tensor: pb.Tensor) -> Array:
    if tensor.elem_type == NPY:
        return npy.read(tensor.byte_data)
    kind = type_of(tensor.elem_type)
    return from_numbers(kind, getattr(tensor, kind.field), tensor.shape)
