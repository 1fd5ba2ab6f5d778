"""HTTP requests to a `Bench`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from edl.teacher.front.server import Server
from edl.tests.teacher.bench import WAIT_S, Bench

INFER = "/v2/models/resnet/infer"
LENGTH = "Inference-Header-Content-Length"


def url_of(server: Server) -> str:
    assert server.url is not None
    return server.url


def rows(count: int = 3) -> dict[str, Any]:
    """A request in JSON."""
    data = list(range(4 * count))
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [count, 4], "data": data}]}


def ask(
    bench: Bench, method: str, path: str, *, verify: Any = False, **request: Any
) -> httpx.Response:
    with httpx.Client(base_url=url_of(bench.server), timeout=WAIT_S, verify=verify) as client:
        return client.request(method, path, **request)


def infer(bench: Bench, message: Mapping[str, Any], raw: bytes = b"", /, **headers: str) -> Any:
    """A request with tensors behind its JSON object."""
    head = json.dumps(message).encode()
    beside = {LENGTH: str(len(head))} if raw else {}
    return ask(bench, "POST", INFER, content=head + raw, headers=beside | headers)


def refused(response: httpx.Response, status: int) -> str:
    """The message of a refusal."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert isinstance(error, str)
    return error
