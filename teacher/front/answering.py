"""One request of many that come over one connection: its answer, or what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from ...errors import EdlError, RetryableError, WireError
from ...proto import inference_pb2 as pb
from ...proto.stream_answers import failed
from ...proto.wire import take_out

log = logging.getLogger(__name__)

#: Has a serialised request answered; gives what goes out.
Infer = Callable[[bytes], Awaitable[bytes]]

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER


async def answer(
    infer: Infer,
    refused: Callable[[EdlError], None],
    data: bytes,
    framed: Callable[[bytes], bytes] = bytes,
) -> bytes:
    """What goes out for a request; it fails by itself, and spoils no other.

    Args:
        infer: gives the answer of one that is answered, as it goes out.
        refused: told of each that is not.
        data: the request.
        framed: an answer of `stream_answers` as it goes out.
    """
    try:
        return await infer(data)
    except EdlError as error:
        refused(error)
        return framed(failed(error, _id_of(data)))
    except Exception as error:  # as by a call: this request fails, and no other
        log.exception("a request could not be answered")
        why = RetryableError(f"{type(error).__name__}: {error}")
        return framed(failed(why, _id_of(data)))


def _id_of(data: bytes) -> str:
    """The id of a request that may be malformed in any way."""
    try:
        return pb.ModelInferRequest.FromString(take_out(data, _RAW_INPUTS)[0]).id
    except (WireError, DecodeError):
        return ""
