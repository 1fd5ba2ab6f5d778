"""Thousands of hostile messages at both planes: each has its status, and a good client is served.

Random bytes, honest messages cut and bent, impossible fields and tensors, too large messages.
"""

from __future__ import annotations

import json
import re
import select
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from edl.proto import coordinator_pb2 as pb
from edl.proto import tensors
from edl.proto.protocols import PROTOCOL_VERSION
from edl.proto.security.client_connections import open_channel
from edl.runtime.errors import WireError
from edl.runtime.supervise import python_command, start
from edl.tests.coordinator.calls import SERVICE
from edl.tests.hostile import planes
from edl.tests.hostile.inputs import CONTROL, DATA, TOO_LARGE, Input
from edl.tests.hostile.planes import Code, ends_of, served_throughout
from edl.tests.proto.security.authority import write_secret
from edl.tests.proto.strategies import EDITS, bend, encoded_request
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.bench_http import INFER, LENGTH, Talk, head, infer, rows
from edl.tests.teacher.fakes import array
from edl.tests.waiting import wait_until

#: What each status of a refusal is counted as.
_COUNTED = {
    Code.INVALID_ARGUMENT: "malformed",
    Code.OUT_OF_RANGE: "version",
    Code.RESOURCE_EXHAUSTED: "too_large",
    Code.FAILED_PRECONDITION: "wrong_instance",
}


def test_messages_at_a_manager() -> None:
    with closing(planes.ControlPlane()) as control:
        with served_throughout(planes.good_student(control.address)):
            ended = _storm_of_messages(control.address, SERVICE, CONTROL, _expected_of_a_manager)
        _check_counts(ended, lambda reason: control.refused[reason])


def _storm_of_messages(
    address: str,
    service: str,
    inputs: st.SearchStrategy[Input],
    expected: Callable[[Input], tuple[Code, ...]],
) -> Counter[Code]:
    """Send thousands of inputs, and check how each ends; returns the counts of statuses."""
    ended: Counter[Code] = Counter()
    with open_channel(address) as channel:

        def hit(batch: list[Input]) -> None:
            ends = ends_of(channel, service, batch)
            for one, (code, details) in zip(batch, ends, strict=True):
                assert code in expected(one), (one, code, details)
                ended[code] += 1

        planes.storm(inputs, hit)
    return ended


def _expected_of_a_manager(one: Input) -> tuple[Code, ...]:
    if one.message is TOO_LARGE:
        return (Code.RESOURCE_EXHAUSTED,)
    kind = "StudentReport" if one.method == "Subscribe" else f"{one.method}Request"
    message: Any = getattr(pb, kind)()
    try:
        message.ParseFromString(one.message)
    except Exception:
        return (Code.INVALID_ARGUMENT,)
    if one.method == "Subscribe" and message.protocol_version != PROTOCOL_VERSION:
        return (Code.OUT_OF_RANGE,)
    if planes.follows_log(one):  # unless it names no service, it goes on
        return Code.DEADLINE_EXCEEDED, Code.INVALID_ARGUMENT
    return Code.OK, Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS, Code.PERMISSION_DENIED


def test_messages_at_a_teacher() -> None:
    with closing(Bench()) as data:
        with served_throughout(lambda: _labelled_well(data)):
            ended = _storm_of_messages(data.address, planes.DATA, DATA, _expected_of_a_teacher)
        _check_counts(ended, lambda reason: int(data.refused(reason) or 0))


def _expected_of_a_teacher(one: Input) -> tuple[Code, ...]:
    if one.method in ("ServerLive", "ServerMetadata"):
        return (Code.OK,)  # there is nothing in these to be read
    if one.message is TOO_LARGE:
        return (Code.RESOURCE_EXHAUSTED,)
    if one.method == "ModelInfer":
        try:
            request = tensors.decode_request(one.message)
        except WireError:
            return (Code.INVALID_ARGUMENT,)
        if {"teacher_id", "incarnation"} & set(request.parameters):
            return Code.OK, Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION
    return Code.OK, Code.INVALID_ARGUMENT


def _labelled_well(data: Bench) -> None:
    labels = data.infer(rows=3).outputs["double"]
    np.testing.assert_array_equal(labels, array(3, 4) * 2)


def _check_counts(ended: Counter[Code], counted: Callable[[str], int]) -> None:
    """As many refusals are counted, for each reason, as there were."""
    assert {Code.OK, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED} <= set(ended)
    for code, reason in _COUNTED.items():
        wait_until(lambda c=code, r=reason: counted(r) == ended[c])  # type: ignore[misc]


#: What a stranger's request may be answered; 503 would be our own failure.
_STATUSES = {200, 400, 404, 405, 411, 412, 413, 415, 417, 421, 431}
#: How long to wait for an answer: half a request gets none, a whole one gets it later, too.
_HALF_S = 0.03
_TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4]}


def request(
    body: bytes, path: str = INFER, method: str = "POST", length: Any = None, /, **headers: object
) -> bytes:
    """A request, whole and honest but for what is given."""
    nbytes = len(body) if length is None else length
    said = head(nbytes, path, Connection="close", **headers)
    return said.replace(b"POST", method.encode(), 1) + body


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
_DEPTHS = st.sampled_from([b"[", b'{"a":'])
_PATHS = st.sampled_from(["/", "/v2/", "/v2/models/%00/infer", "/v2/models/" + "a" * 20_000])
_METHODS = st.sampled_from(["GET", "POST", "PUT", "TRACE", "\x00"])


def _of_tensor(shape: list[object], numbers: bytes = b"0,0,0,0") -> bytes:
    said = json.dumps({"inputs": [{**_TENSOR, "shape": shape, "data": [0]}]}).encode()
    return request(said.replace(b'"data": [0]', b'"data": [' + numbers + b"]"))


_ODD = [
    st.builds(lambda length: request(_HEAD + bytes(16), **{LENGTH: length}), _LENGTHS),
    st.builds(lambda length: request(_HEAD + bytes(16), INFER, "POST", length), _LENGTHS),
    st.builds(_of_tensor, _DIMS),
    st.builds(lambda number: _of_tensor([1, 4], b",".join([number] * 4)), _NUMBERS),
    st.builds(lambda depth: request(b'{"inputs": ' + depth * 50_000), _DEPTHS),
    st.builds(request, st.just(b"{}"), _PATHS, _METHODS),
]
_BENT = st.builds(bend, st.sampled_from(_HONEST), EDITS)
_USUAL = [st.sampled_from(_REFUSED), st.sampled_from(_HONEST), st.binary(min_size=1, max_size=64)]
_INPUTS = st.one_of(*[_BENT, *_USUAL] * 2, *_ODD)


def test_garbage_over_http() -> None:
    seen: Counter[int] = Counter()
    with closing(Bench(http="0")) as web, ThreadPoolExecutor(planes.AT_ONCE) as pool:

        def hit(batch: list[bytes]) -> None:
            answers = pool.map(partial(_answers, web), batch)
            for one, statuses in zip(batch, answers, strict=True):
                assert _STATUSES.issuperset(statuses), (one, statuses)
                seen.update(statuses)

        with served_throughout(lambda: _labelled_well_over_http(web)):
            planes.storm(_INPUTS, hit)
        assert {200, 400, 404, 405, 413} <= set(seen), seen
        assert web.refused("malformed") > 0
        wait_until(lambda: web.open_calls == 0)


def _answers(web: Bench, data: bytes) -> list[int]:
    """The statuses that some bytes are answered with; none where they are no whole request."""
    received = b""
    with Talk(web) as talk, suppress(ConnectionResetError, BrokenPipeError):  # it has heard enough
        talk.say(data)
        select.select([talk.socket], [], [], _HALF_S)
        talk.socket.shutdown(socket.SHUT_WR)
        while more := talk.socket.recv(1 << 16):
            received += more
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) [A-Z]", received)]


def _labelled_well_over_http(web: Bench) -> None:
    answer = infer(web, rows(1))
    assert answer.json()["outputs"][1]["data"] == [0, 2, 4, 6]


LARGE = bytes(192 << 20)
MAX_MESSAGE_BYTES = 256 << 20
#: What a stranger may cost: gRPC receives 4 MiB of each message before it is asked for it.
SPARE_BYTES = 48 << 20
PROBES = ("ServerLive", "ServerReady")
GUARDED = ("ServerMetadata", "ModelMetadata", "ModelInfer")


def test_a_stranger_fills_no_memory(tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student:resnet s3cret\n")
    program = "edl.tests.hostile.guarded_teacher"
    teacher = start(python_command("teacher", program, tokens, MAX_MESSAGE_BYTES))
    try:
        port = teacher.expect(r"^port (\d+)$", 60.0)[1]
        with open_channel(f"127.0.0.1:{port}") as channel:
            x = {"x": array(1, 4)}
            small = Input("ModelInfer", encoded_request(model_name="m", inputs=x))
            assert ends_of(channel, planes.DATA, [small])[0][0] is Code.UNAUTHENTICATED
            before = most_bytes(teacher.pid)
            for method in (*PROBES, *GUARDED):
                for _ in range(4):
                    code, details = ends_of(channel, planes.DATA, [Input(method, LARGE)])[0]
                    expected = Code.OK if method in PROBES else Code.UNAUTHENTICATED
                    assert code is expected, (method, details)
                assert most_bytes(teacher.pid) - before < SPARE_BYTES, method
    finally:
        teacher.stop(grace_s=0.0)


def most_bytes(pid: int) -> int:
    """The most that the process ever held in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10
