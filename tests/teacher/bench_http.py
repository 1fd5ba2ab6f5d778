"""HTTP requests to a `Bench`, whole or byte by byte over one connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from http.client import HTTPResponse
from typing import Any

import httpx
import numpy as np

from edl.proto.arena import Array
from edl.teacher.servers.server import TeacherServer
from edl.tests.teacher.bench import WAIT_S, Bench

INFER = "/v2/models/resnet/infer"
LENGTH = "Inference-Header-Content-Length"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def url_of(server: TeacherServer) -> str:
    assert server.url is not None
    return server.url


def rows(count: int = 3) -> dict[str, Any]:
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
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert isinstance(error, str)
    return error


def numbers(count: int = 40_000) -> Array:
    return np.random.default_rng(count).standard_normal((count, 4), dtype=np.float32)


def head(nbytes: object, path: str = INFER, /, **headers: object) -> bytes:
    said: dict[str, object] = {"Host": "localhost", "Content-Length": nbytes, **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join([*lines, "", ""]).encode()


CHUNKED = head(0, **{"Transfer-Encoding": "chunked"}).replace(b"Content-Length: 0\r\n", b"")


def batch(x: Array, /, **headers: object) -> bytes:
    """A request for twice `x`, float32, all of it as bytes."""
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    message = {
        "parameters": {"binary_data_output": True},
        "inputs": [{**tensor, "parameters": {"binary_data_size": x.nbytes}}],
        "outputs": [{"name": "double"}],
    }
    said = json.dumps(message).encode()
    nbytes = len(said) + x.nbytes
    return head(nbytes, **{LENGTH: len(said), **headers}) + said + x.tobytes()


class Reply:
    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()

    def labels(self) -> Array:
        """The only output of an answer that is bytes."""
        assert self.status == 200, self.body
        said = int(self.headers[LENGTH.lower()])
        (output,) = json.loads(self.body[:said])["outputs"]
        return np.frombuffer(self.body[said:], np.float32).reshape(output["shape"])

    def words(self) -> str:
        return str(json.loads(self.body)["error"])


class Talk(AbstractContextManager["Talk"]):
    """One connection to the HTTP of `bench`."""

    def __init__(self, bench: Bench) -> None:
        host, port = url_of(bench.server).rpartition("//")[2].split(":")
        self.socket = socket.create_connection((host, int(port)), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name: tuple[str, int] = self.socket.getsockname()

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, *parts: bytes) -> None:
        for part in parts:
            self.socket.sendall(part)

    def hear(self) -> Reply:
        """The next answer; what follows it must not have come yet."""
        response = HTTPResponse(self.socket, method="POST")
        response.begin()
        return Reply(response)

    def ask(self, *parts: bytes) -> Reply:
        self.say(*parts)
        return self.hear()

    def is_over(self) -> bool:
        """Whether the server has closed it; waits for that, or for more to come."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
