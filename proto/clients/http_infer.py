"""A batch and its labels as the Open Inference Protocol has them over HTTP, from who asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from ...errors import BadAnswer, RequestRefused, WireError
from .. import json_asking
from ..json_tensors import HEAD_LENGTH, split
from ..wire import Buffer
from .client import Answer, Request
from .http_calls import Reply
from .http_statuses import from_http


def path_of(model: str) -> str:
    """Where a server has `model`."""
    return f"/v2/models/{quote(model, safe='')}"


def body_of(request: Request, *, binary: bool) -> tuple[Mapping[str, str], Sequence[Buffer]]:
    """Headers and body of a request; where it is `binary`, its arrays' own memory.

    Raises:
        RequestRefused: it can be sent nowhere.
    """
    try:
        head, raws = json_asking.encode_request(
            request.inputs,
            request.outputs,
            request_id=request.request_id,
            parameters=request.parameters,
            output_parameters=request.output_parameters,
            binary=binary,
        )
    except (WireError, ValueError) as error:  # what cannot be sent here can be sent nowhere
        raise RequestRefused(f"it cannot be sent: {error}") from None
    # Servers choose by the type how to read the body, so it is always said.
    if not raws:
        return {"Content-Type": "application/json"}, [head]
    headers = {"Content-Type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
    return headers, [head, *raws]


def answer_of(reply: Reply) -> Answer:
    """The labels in a reply.

    Raises:
        EdlError: that its status stands for.
        BadAnswer: it cannot be read.
    """
    if reply.status != 200:
        raise from_http(reply)
    try:
        head, raw = split(reply.body, reply.headers.get(HEAD_LENGTH.lower()))
        said = json_asking.decode_response(head, raw)
    except WireError as error:
        raise BadAnswer(str(error)) from None
    return Answer(said.outputs, said.parameters, said.output_parameters)
