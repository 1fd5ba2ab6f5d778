"""A client of the Open Inference Protocol over HTTP: tensors as bytes, or as JSON where need be.

Not every server takes the binary extension, and none says reliably whether it does. So the first
batch goes out as bytes, and once more as JSON where the server refuses that; what it took is what
it gets from then on.
"""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

from ...errors import BadAnswer, RequestRefused, RetryableError, WireError
from .. import json_asking
from ..json_objects import objects_in, parse_object, shape_of, text_in
from ..json_tensors import HEAD_LENGTH, split
from ..security import ClientSecurity
from ..security.http_dial import HttpDial
from ..specs import TensorSpec
from .client import Answer, Found, Request
from .http_calls import HttpCalls, Reply
from .http_statuses import from_http

#: How servers refuse a body that is no JSON: of those that know the extension, and those that fail.
_NO_BYTES: Final = (400, 406, 415, 422, 500, 501)
_NOT_READY: Final = (400, 503)


class OipHttpClient:
    """A `Client` of one model.

    Args:
        url: http://host:port or https://host:port, perhaps with the path that /v2 stands under.
        model: its name there.
        security: how to prove who calls; None: no token.

    Attributes:
        binary: whether the server takes tensors as bytes; None: it has not been asked yet.

    Raises:
        UsageError: the URL is none, or a file of `security` cannot be used.
    """

    def __init__(self, url: str, model: str, security: ClientSecurity | None = None) -> None:
        self.binary: bool | None = None
        self._model = model
        self._path = f"/v2/models/{quote(model, safe='')}"
        self._calls = HttpCalls(HttpDial(url, security))

    def probe(self, timeout_s: float) -> Found:
        ready = self._calls.call("GET", f"{self._path}/ready", timeout_s)
        if ready.status in _NOT_READY or (ready.status == 200 and _says_no(ready)):
            raise RetryableError(f"model {self._model!r} is not ready there: {ready.words()}")
        if ready.status != 200:
            raise from_http(ready)
        described = self._calls.call("GET", self._path, timeout_s)
        if described.status == 200:
            return _found(described)
        if isinstance(error := from_http(described), RequestRefused):
            return Found()  # it is ready, and does not describe itself
        raise error

    def infer(self, request: Request, timeout_s: float) -> Answer:
        if self.binary is not None:
            return _answer(self._ask(request, timeout_s, binary=self.binary))
        until_s = time.monotonic() + timeout_s
        reply = self._ask(request, timeout_s, binary=True)
        if reply.status not in _NO_BYTES:
            answer = _answer(reply)
            self.binary = True
            return answer
        answer = _answer(self._ask(request, until_s - time.monotonic(), binary=False))
        self.binary = False
        return answer

    def close(self) -> None:
        self._calls.close()

    def _ask(self, request: Request, timeout_s: float, *, binary: bool) -> Reply:
        try:
            body, head_length = json_asking.encode_request(
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
        headers = {"Content-Type": "application/json"}
        if head_length is not None:
            headers = {
                "Content-Type": "application/octet-stream",
                HEAD_LENGTH: str(head_length),
            }
        return self._calls.call("POST", f"{self._path}/infer", timeout_s, body, headers)


def _answer(reply: Reply) -> Answer:
    """Raises the error that its status stands for; BadAnswer where it cannot be read."""
    if reply.status != 200:
        raise from_http(reply)
    try:
        head, raw = split(reply.body, reply.headers.get(HEAD_LENGTH.lower()))
        said = json_asking.decode_response(head, raw)
    except WireError as error:
        raise BadAnswer(str(error)) from None
    return Answer(said.outputs, said.parameters, said.output_parameters)


def _says_no(reply: Reply) -> bool:
    try:
        return parse_object(reply.body).get("ready", True) is False
    except WireError:  # most say nothing but their status
        return False


def _found(reply: Reply) -> Found:
    try:
        message = parse_object(reply.body)
        return Found(_specs(message, "inputs"), _specs(message, "outputs"))
    except WireError as error:
        raise BadAnswer(f"the model's description cannot be read: {error}") from None


def _specs(message: dict[str, Any], key: str) -> tuple[TensorSpec, ...]:
    if message.get(key) is None:
        return ()
    return tuple(
        TensorSpec(text_in(tensor, "name"), text_in(tensor, "datatype"), tuple(shape_of(tensor)))
        for tensor in objects_in(message, key)
    )
