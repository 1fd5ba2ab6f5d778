"""Arrays in messages of the C++ server's protocol: requests are made here, answers are read.

Written from the protocol and tested against the client that Paddle Serving ships; not verified
against a running C++ server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from ...errors import WireError
from ..datatypes import Array, datatype_of, from_bytes, to_bytes
from . import general_model_pb2 as pb
from .elements import NUMBERS, TYPES, from_numbers, type_of
from .refusals import check

METHOD = "/baidu.paddle_serving.predictor.general_model.GeneralModelService/inference"


def encode_request(
    inputs: Mapping[str, Array], outputs: Sequence[str] = (), log_id: int = 0
) -> bytes:
    """A serialised request.

    Args:
        inputs: arrays by name, which is taken for the alias too.
        outputs: aliases of the outputs wanted; empty: every one.
        log_id: what the server's own log calls the request, 0 to 2^63 - 1.

    Raises:
        WireError: a dtype has no number there, or a name is not text.
    """
    try:
        return pb.Request(
            tensor=[_tensor(name, array) for name, array in inputs.items()],
            fetch_var_names=outputs,
            log_id=log_id,
        ).SerializeToString()
    except ValueError as error:  # protobuf: a number or a text that a field has no place for
        raise WireError(f"the request cannot be sent: {error}") from None


def decode_response(data: bytes) -> dict[str, Array]:
    """The outputs of a serialised answer by their aliases, read-only.

    Raises:
        TeacherError: the server says by `err_no` that it has no answer (`refusals.py`).
        WireError: the answer cannot be read, holds nothing, or that of several models.
    """
    try:
        response = pb.Response.FromString(data)
    except DecodeError as error:
        raise WireError(f"no answer of a general model service: {error}") from None
    check(response.err_no, response.err_msg)
    if len(response.outputs) != 1 or not response.outputs[0].tensor:
        raise WireError(
            f"the answer holds outputs of {len(response.outputs)} models, and those of one "
            "are expected"
        )
    outputs: dict[str, Array] = {}
    for tensor in response.outputs[0].tensor:
        name = tensor.alias_name or tensor.name
        if not name or name in outputs or tensor.lod:
            raise WireError(
                f"output {name!r:.60} is nameless, comes twice or has a varying length (lod)"
            )
        outputs[name] = _array(tensor)
    return outputs


def _tensor(name: str, array: Array) -> pb.Tensor:
    datatype = datatype_of(array.dtype)
    number = NUMBERS.get(datatype)
    if number is None:
        raise WireError(f"{datatype} cannot be sent to Paddle Serving")
    tensor = pb.Tensor(name=name, alias_name=name, elem_type=number, shape=array.shape)
    kind = TYPES[number]
    if kind.raw:
        tensor.tensor_content = bytes(to_bytes(array))
    else:
        getattr(tensor, kind.field).extend(array.ravel().tolist())
    return tensor


def _array(tensor: pb.Tensor) -> Array:
    kind = type_of(tensor.elem_type)
    if kind.raw and tensor.tensor_content:
        return from_bytes(memoryview(tensor.tensor_content), kind.datatype, tuple(tensor.shape))
    return from_numbers(kind, getattr(tensor, kind.field), tensor.shape)
