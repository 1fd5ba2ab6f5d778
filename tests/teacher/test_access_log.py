"""The access log: one line for each call of either protocol, without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.runtime.errors import BadAnswer
from edl.teacher.recorder import Recorder, access_log
from edl.teacher.servers.http_app import record_calls
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import SERVICE, WAIT_S, Bench, Make, refusal
from edl.tests.teacher.bench_http import INFER, ask, infer, rows
from edl.tests.teacher.conftest import AccessLog
from edl.tests.teacher.fakes import array
from edl.tests.waiting import wait_until

FIELDS = [
    *("protocol", "method", "model", "request", "peer", "status", "samples"),
    *("queue_s", "compute_s", "received_bytes", "sent_bytes", "duration_s"),
]
TOKEN = "a-token-that-nobody-may-read"


@pytest.fixture
def bench(make: Make) -> Bench:
    return make(http="0")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_request(bench: Bench, lines: AccessLog, protocol: str) -> None:
    if protocol == "grpc":
        method, status, sent = "ModelInfer", "OK", bench.request(3, request_id="17")
        answer = bench.infer_bytes(sent)
    else:
        method, status, sent = f"POST {INFER}", "200", json.dumps({"id": "17", **rows(3)}).encode()
        answer = ask(bench, "POST", INFER, content=sent).content
    line = lines.last()
    assert list(line) == FIELDS
    assert str(line.pop("status")) == status
    host, _, port = line.pop("peer").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert 0 <= line.pop("queue_s") <= line.pop("duration_s") < WAIT_S
    assert 0 <= line.pop("compute_s") <= 0.004, "what the model says that it took, at most"
    assert line == {
        "protocol": protocol, "method": method, "model": "resnet", "request": "17",
        "samples": 3, "received_bytes": len(sent), "sent_bytes": len(answer),
    }  # fmt: skip


def test_requests_of_a_stream_and_its_end(bench: Bench, lines: AccessLog) -> None:
    requests = [bench.request(rows, request_id=str(rows)) for rows in (1, 2)]
    stream = bench.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", None, None)
    answers = list(stream(iter(requests), timeout=WAIT_S))
    assert len(answers) == 2
    lines.last(3)
    *of_requests, end = lines()
    found = {line["request"]: line for line in of_requests}
    assert set(found) == {"1", "2"}
    assert found["2"]["samples"] == 2
    assert found["2"]["received_bytes"] == len(requests[1])
    assert found["2"]["status"] == end["status"] == "OK"
    assert {line["method"] for line in lines()} == {"ModelStreamInfer"}
    assert (end["model"], end["samples"]) == (None, None)


def test_probes_and_metadata(bench: Bench, lines: AccessLog) -> None:
    bench.call("ServerLive")
    ask(bench, "GET", "/v2/health/ready?token=secret")
    lines.last(2)
    assert [(line["method"], line["status"], line["samples"]) for line in lines()] == [
        ("ServerLive", "OK", None),
        ("GET /v2/health/ready", 200, None),
    ]
    for method in ("ModelReady", "ModelMetadata"):
        bench.call(method, name="resnet")
    refusal(bench.call, "ModelMetadata", name="vgg")
    for path in ("resnet", "resnet/ready", "vgg"):
        ask(bench, "GET", f"/v2/models/{path}")
    bench.call("RepositoryIndex")
    lines.last(9)
    models = ["resnet", "resnet", "vgg", "resnet", "resnet", "vgg", None]
    assert [line["model"] for line in lines()] == [None, None, *models]
    assert {line["request"] for line in lines()} == {None}


def test_statuses_of_refused_requests(bench: Bench, lines: AccessLog) -> None:
    refusal(bench.infer, model_name="a\nb" * 1000, request_id="\u2028" + "x" * 1000)
    line = lines.last()
    assert (line["samples"], line["queue_s"], line["sent_bytes"]) == (None, None, 0)
    assert (line["status"], len(line["model"]), len(line["request"])) == (
        "INVALID_ARGUMENT",
        200,
        200,
    )
    assert lines.texts()[0].isascii(), "text of the client is escaped"
    assert "\n" not in lines.texts()[0]
    bench.fail(BadAnswer("NaN", "double"))
    asked: list[tuple[Callable[[], object], object]] = [
        (partial(refusal, bench.infer), "INTERNAL"),
        (partial(refusal, bench.infer_bytes, bytes((1 << 20) + 1)), "RESOURCE_EXHAUSTED"),
        (partial(infer, bench, rows()), 500),
        (partial(infer, bench, rows(), bytes(1 << 20)), 413),
        (partial(ask, bench, "GET", "/v2/nothing"), 404),
        (partial(ask, bench, "GET", "/v2", headers={"Origin": "http://page"}), 403),
    ]
    for count, (call, status) in enumerate(asked, start=2):
        call()
        assert lines.last(count)["status"] == status


def test_a_cancelled_request(bench: Bench, lines: AccessLog) -> None:
    held = bench.hold()
    asked = bench.method().future(bench.request())
    held.wait()
    asked.cancel()
    line = lines.last()
    assert (line["status"], line["sent_bytes"]) == ("CANCELLED", 0)
    held.release()
    wait_until(lambda: bench.recorder.in_flight == 0)
    assert len(lines()) == 1


def test_a_caller_that_reset_its_connection_before_it_was_accepted(lines: AccessLog) -> None:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> dict[str, Any]:
        raise AssertionError("the application reads nothing")

    async def send(message: Any) -> None:
        sent.append(message)

    # uvicorn still reads its request, but the system no longer knows its address.
    scope: Any = {"type": "http", "method": "GET", "path": "/v2", "client": None, "state": {}}

    async def call() -> None:
        await record_calls(app, Recorder())(scope, receive, send)

    asyncio.run(call())
    assert (lines.last()["peer"], lines.last()["status"]) == ("unknown", 200)
    assert len(sent) == 2


def test_secrets_and_tensors_are_not_logged(make: Make, lines: AccessLog, tmp_path: Path) -> None:
    server = ServerSecurity(tokens_file=write_secret(tmp_path / "tokens", f"student {TOKEN}\n"))
    client = ClientSecurity(None, write_secret(tmp_path / "token", TOKEN))
    bench = make(client, security=server, http="0")
    marked = array(2, 4) + 31337
    bench.infer(inputs={"x": marked})
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": marked.ravel().tolist()}
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert ask(bench, "POST", INFER, json={"inputs": [tensor]}, headers=headers).is_success
    assert ask(bench, "POST", INFER, headers={"authorization": "Bearer guessed"}).is_client_error
    lines.last(3)
    assert [line["status"] for line in lines()] == ["OK", 200, 401]
    said = "".join(lines.texts())
    assert not any(word in said for word in (TOKEN, "guessed", "31337", "3133"))


def test_nothing_is_logged_by_default(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, access_log.name)

    def peer() -> str:
        raise AssertionError("nobody asks who calls")

    with Recorder().call("grpc", "ModelInfer", peer):
        pass
    bench.infer()
    infer(bench, rows())
    assert caplog.records == []
