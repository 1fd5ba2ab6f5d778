"""Thousands of HTTP requests that no honest client sends: each has its status, or its end."""

from __future__ import annotations

import json
import re
import select
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import strategies as st

from edl.tests.ground.programs import wait_for
from edl.tests.hostile.good_client import served_throughout
from edl.tests.hostile.inputs import EDITS, bend
from edl.tests.hostile.storm import AT_ONCE, FRAMES, storm
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import INFER, LENGTH, infer, rows, url_of

#: What a stranger's request may be answered; 503 would be our own failure.
_STATUSES = {200, 400, 404, 405, 411, 412, 413, 415, 417, 421, 431}
_TIMEOUT_S = 30.0
#: Within which a whole request is answered, mostly.
_SOON_S = 0.3
_TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4]}


@pytest.fixture
def web() -> Iterator[Bench]:
    bench = Bench(http="0")
    yield bench
    bench.close()


def request(
    body: bytes,
    path: str = INFER,
    method: str = "POST",
    length: object = None,
    /,
    **headers: object,
) -> bytes:
    """A request, whole and honest but for what is given."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body


_HEAD = json.dumps({"inputs": [{**_TENSOR, "parameters": {"binary_data_size": 16}}]}).encode()
_HONEST = [
    request(json.dumps(rows(1)).encode()),
    request(_HEAD + bytes(16), **{LENGTH: len(_HEAD)}),
    request(b"", "/v2/models/resnet", "GET"),
    request(b'{"key": "edl-none", "byte_size": 8}', "/v2/systemsharedmemory/region/r/register"),
]
#: 413, 404 and 405: statuses that chance alone might miss.
_REFUSED = [
    request(_HEAD, INFER, "POST", 1 << 40),
    request(b"{}", "/v2/models/none", "GET"),
    request(b"{}", "/v2/models/resnet", "PUT"),
]
_LENGTHS = st.sampled_from([-1, 0, 1, len(_HEAD) - 1, len(_HEAD) + 17, 1 << 40, "x", "", "9" * 30])
_DIMS = st.lists(st.sampled_from([-(1 << 70), -1, 0, 1, 4, 1 << 31, 1 << 63, 1 << 90, 0.5, None]))
_NUMBERS = st.sampled_from([b"1e999", b"NaN", b"-0", b"9" * 5000, b"true", b"[]", b'"\\ud800"'])


@st.composite
def _odd(draw: st.DrawFn) -> bytes:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return request(_HEAD + bytes(16), **{LENGTH: draw(_LENGTHS)})
    if kind == 1:
        return request(_HEAD + bytes(16), INFER, "POST", draw(_LENGTHS))
    if kind == 2:
        odd: dict[str, Any] = {**_TENSOR, "shape": draw(_DIMS), "data": [0.0] * 4}
        return request(json.dumps({"inputs": [odd]}).encode())
    if kind == 3:
        return request(b'{"inputs": ' + draw(st.sampled_from([b"[", b'{"a":'])) * 50_000)
    if kind == 4:
        numbers = b",".join([draw(_NUMBERS)] * 4)
        head = json.dumps({**_TENSOR, "data": [0]}).encode().replace(b"[0]", b"[" + numbers + b"]")
        return request(b'{"inputs": [' + head + b"]}")
    path = draw(
        st.sampled_from(["/", "/v2/", "/v2/models/%00/infer", "/v2/models/" + "a" * 20_000])
    )
    return request(b"{}", path, draw(st.sampled_from(["GET", "POST", "PUT", "TRACE", "\x00"])))


_INPUTS = st.one_of(
    st.builds(bend, st.sampled_from(_HONEST), EDITS),
    _odd(),
    st.sampled_from(_REFUSED),
    st.sampled_from(_HONEST),
    st.binary(min_size=1, max_size=64),
)


@pytest.mark.parametrize("count", FRAMES)
def test_garbage_over_http(web: Bench, count: int) -> None:
    host, port = url_of(web.server).removeprefix("http://").split(":")
    seen: Counter[int] = Counter()

    def hit(batch: list[bytes]) -> None:
        for one, answers in zip(batch, pool.map(ask, batch), strict=True):
            for status in answers:
                assert status in _STATUSES, (one, status)
                seen[status] += 1

    def ask(data: bytes) -> list[int]:
        return _answers((host, int(port)), data)

    with ThreadPoolExecutor(AT_ONCE) as pool, served_throughout(lambda: _labelled_well(web)):
        assert storm(_INPUTS, count, hit) == count
    assert {200, 400, 404, 405, 413} <= set(seen), seen
    assert web.refused("malformed") > 0
    wait_for(lambda: len(web.server._methods.infer_calls) == 0)  # no call is left open


def _answers(address: tuple[str, int], data: bytes) -> list[int]:
    """The statuses that some bytes are answered with; none where they are no whole request."""
    received = b""
    with socket.create_connection(address, _TIMEOUT_S) as connection:
        try:
            connection.sendall(data)
            select.select([connection], [], [], _SOON_S)  # half a request has no answer
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                received += more
        except (ConnectionResetError, BrokenPipeError):  # it has heard enough
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) [A-Z]", received)]


def _labelled_well(web: Bench) -> None:
    answer = infer(web, rows(1))
    assert answer.json()["outputs"][1]["data"] == [0, 2, 4, 6]
