"""Answers of `ModelStreamInfer`: each is that of one request, or says why that has none.

The protocol has words for a failure, and no status. Our servers name the status as well, and what
goes beside it, in the parameters of the answer that is left empty; they list `EXTENSION` among
their extensions. So whoever asks over a stream learns as much as by a call of its own.

A server that takes leave says so by an empty answer, if the stream's metadata say that its caller
knows such a *farewell*: the caller then sends nothing more and ends its side, and whatever it has
sent is answered.
"""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.message import DecodeError

from ..errors import BadAnswer, EdlError, WireError
from . import inference_pb2 as pb
from .status import from_status, to_metadata, to_status
from .wire import Buffer, bytes_field, take_out

#: What a server that names statuses says it has.
EXTENSION: Final = "edl_stream_status"
#: The answer that is a farewell, and the metadata of a stream whose caller knows it.
FAREWELL: Final = b""
KNOWS_FAREWELLS: Final = (("edl-farewell", "1"),)
#: Requests of one stream that a server of ours has in work: one travels while the model works.
AT_ONCE: Final = 2

_RESPONSE: Final = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
_STATUS: Final = "status"


def before(nbytes: int) -> bytes:
    """What makes a serialised `ModelInferResponse` of so many bytes an answer, before it."""
    return bytes_field(_RESPONSE, nbytes)


def answered(response: bytes) -> bytes:
    """The answer that bears a serialised `ModelInferResponse`."""
    return b"".join((before(len(response)), response))


def failed(error: EdlError, request_id: str) -> bytes:
    """The answer to a request that ended by `error`."""
    code, words = to_status(error)
    said = {_STATUS: code.name, **dict(to_metadata(error))}
    about = pb.ModelInferResponse(
        id=request_id,
        parameters={name: pb.InferParameter(string_param=value) for name, value in said.items()},
    )
    answer = pb.ModelStreamInferResponse(error_message=words or code.name, infer_response=about)
    return answer.SerializeToString()


def read(answer: Buffer) -> memoryview:
    """The serialised `ModelInferResponse` in an answer, as a view.

    Raises:
        EdlError: the request failed; which one, the server has said. One that names no status is a
            RetryableError.
        BadAnswer: this is no answer of a stream.
    """
    try:
        rest, responses = take_out(answer, _RESPONSE)
        words = pb.ModelStreamInferResponse.FromString(rest).error_message if rest else ""
        if not words and len(responses) == 1:
            return responses[0]
        about = pb.ModelInferResponse.FromString(b"".join(responses))
    except (WireError, DecodeError) as error:
        raise BadAnswer(f"this is no answer of a stream: {error}") from None
    if not words:
        raise BadAnswer("an answer of a stream holds neither labels nor an error")
    said = {name: value.string_param for name, value in about.parameters.items()}
    code = grpc.StatusCode.__members__.get(said.get(_STATUS, ""), grpc.StatusCode.INTERNAL)
    if code is grpc.StatusCode.OK:
        raise BadAnswer(f"an error has the status OK: {words}")
    raise from_status(code, words, said.items())
