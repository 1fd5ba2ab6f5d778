"""The protocol over HTTP on a real socket: answers, statuses, limits and counts as of gRPC."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.errors import AddressInUse, BadAnswer, DeadlineExceeded, RetryableError, UsageError
from edl.proto import json_tensors
from edl.proto.security import ServerSecurity
from edl.teacher.http import connections, inference
from edl.teacher.refusals import Overloaded
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.bench_http import INFER, LENGTH, ask, infer, refused, rows, url_of
from edl.tests.teacher.fakes import array
from edl.tests.teacher.segments import shared

GATED = [
    ("GET", "/v2"),
    ("GET", "/v2/models/resnet"),
    ("GET", "/v2/models/resnet/ready"),
    ("GET", "/v2/models/resnet/stats"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/repository/index"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", INFER),
]


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**config: Any) -> Bench:
        benches.append(Bench(**{"http": "0", **config}))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


def test_who_is_there_and_what_it_serves(bench: Bench) -> None:
    assert ask(bench, "GET", "/v2/health/live").status_code == 200
    assert ask(bench, "GET", "/v2/health/ready").status_code == 200
    server = ask(bench, "GET", "/v2").json()
    assert server["name"] == "edl-teacher"
    assert {"statistics", "system_shared_memory", "binary_tensor_data"} <= set(server["extensions"])
    for path in ("/v2/models/resnet", "/v2/models/resnet/versions/1"):
        assert ask(bench, "GET", f"{path}/ready").status_code == 200
        assert ask(bench, "GET", path).json() == {
            "name": "resnet",
            "versions": ["1"],
            "platform": "fake",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [
                {"name": "sum", "datatype": "FP32", "shape": [-1]},
                {"name": "double", "datatype": "FP32", "shape": [-1, 4]},
            ],
        }
    index = ask(bench, "POST", "/v2/repository/index", json={"ready": True}).json()
    assert index == [{"name": "resnet", "version": "1", "state": "READY", "reason": ""}]


def test_a_model_that_loads_is_live_and_not_ready(bench: Bench) -> None:
    bench.labeller.ready = False
    assert ask(bench, "GET", "/v2/health/live").status_code == 200
    assert ask(bench, "GET", "/v2/health/ready").status_code == 503
    assert ask(bench, "GET", "/v2/models/resnet/ready").status_code == 503
    assert ask(bench, "POST", "/v2/repository/index", json={"ready": True}).json() == []
    (model,) = ask(bench, "POST", "/v2/repository/index").json()
    assert (model["state"], model["reason"]) == ("LOADING", "the model is loading")
    assert refused(infer(bench, rows()), 503) == "the model is loading"


def test_labels_in_json_say_who_made_them(bench: Bench) -> None:
    answer = infer(bench, {"id": "17", **rows()})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    message = answer.json()
    assert (message["model_name"], message["model_version"], message["id"]) == ("resnet", "1", "17")
    assert message["parameters"]["teacher_id"] == "t1"
    assert message["outputs"][1] == {
        "name": "double",
        "datatype": "FP32",
        "shape": [3, 4],
        "data": (array(3, 4) * 2).ravel().tolist(),
    }
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 1
    assert bench.count("edl_teacher_samples_total") == 3
    assert bench.count("edl_teacher_sent_bytes_total") == len(answer.content)


def test_labels_as_bytes_are_those_that_grpc_gives(bench: Bench) -> None:
    x = np.random.default_rng(7).standard_normal((5, 4), dtype=np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": [5, 4]}
    message = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": x.nbytes}}],
        "outputs": [{"name": "double", "parameters": {"binary_data": True}}, {"name": "sum"}],
    }
    answer = infer(bench, message, x.tobytes())
    head_length = int(answer.headers[LENGTH])
    head, raw = json.loads(answer.content[:head_length]), answer.content[head_length:]
    ours = bench.infer(inputs={"x": x}).outputs
    assert [tensor["name"] for tensor in head["outputs"]] == ["double", "sum"]
    by_name = {tensor["name"]: tensor for tensor in head["outputs"]}
    assert by_name["double"]["parameters"] == {"binary_data_size": x.nbytes}
    assert raw == ours["double"].tobytes()
    assert np.array(by_name["sum"]["data"], np.float32).tobytes() == ours["sum"].tobytes()


def test_all_outputs_as_bytes_when_that_is_the_default(bench: Bench) -> None:
    answer = infer(bench, {**rows(), "parameters": {"binary_data_output": True}})
    head_length = int(answer.headers[LENGTH])
    sizes = [
        t["parameters"]["binary_data_size"]
        for t in json.loads(answer.content[:head_length])["outputs"]
    ]
    assert sizes == [12, 48]
    assert len(answer.content) == head_length + 60


def test_tensors_in_shared_memory(bench: Bench) -> None:
    x = array(3, 4)
    path = "/v2/systemsharedmemory/region/batch"
    with shared(4096) as owned:
        owned.put(x.tobytes(), 64)
        body: dict[str, Any] = {"key": f"/{owned.key}", "offset": 0, "byte_size": 4096}
        assert ask(bench, "POST", f"{path}/register", json=body).status_code == 200
        (region,) = ask(bench, "GET", f"{path}/status").json()
        assert region == {"name": "batch", **body}
        place: dict[str, Any] = {"shared_memory_region": "batch", "shared_memory_byte_size": 48}
        tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [3, 4]}
        message = {
            "inputs": [{**tensor, "parameters": {**place, "shared_memory_offset": 64}}],
            "outputs": [{"name": "double", "parameters": {**place, "shared_memory_offset": 512}}],
        }
        (output,) = infer(bench, message).json()["outputs"]
        assert output["parameters"] == {**place, "shared_memory_offset": 512}
        assert "data" not in output
        assert owned.get(48, 512) == (x * 2).tobytes()
        assert ask(bench, "POST", f"{path}/unregister").status_code == 200
    assert "no region 'batch'" in refused(infer(bench, message), 400)
    assert ask(bench, "GET", "/v2/systemsharedmemory/status").json() == []


def test_statistics_count_what_was_done(bench: Bench) -> None:
    for _ in range(2):
        infer(bench, rows(3))
    infer(bench, {"inputs": []})
    (model,) = ask(bench, "GET", "/v2/models/resnet/stats").json()["model_stats"]
    assert (model["name"], model["version"]) == ("resnet", "1")
    assert (model["inference_count"], model["execution_count"]) == (6, 2)
    stats = model["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]["count"]) == (2, 1)
    assert stats["success"]["ns"] >= stats["compute_infer"]["ns"] > 0
    (size,) = model["batch_stats"]
    assert (size["batch_size"], size["compute_infer"]["count"]) == (3, 2)
    assert ask(bench, "GET", "/v2/models/stats").json()["model_stats"] == [model]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v2/models/vgg/infer", 400, "unknown model 'vgg'"),
        ("/v2/models/resnet/versions/9/infer", 400, "unknown version '9'"),
        ("/v2/models/resnet/infer/", 404, "Not Found"),
        ("/v2/models/resnet", 405, "Method Not Allowed"),
        ("/v2/nothing", 404, "Not Found"),
    ],
)
def test_another_address(bench: Bench, path: str, status: int, words: str) -> None:
    assert words in refused(ask(bench, "POST", path, json=rows()), status)
    assert bench.refused("malformed") == 1


@pytest.mark.parametrize("path", ["/v2/models/vgg", "/v2/models/vgg/ready", "/v2/models/vgg/stats"])
def test_questions_about_another_model(bench: Bench, path: str) -> None:
    assert "unknown model 'vgg'" in refused(ask(bench, "GET", path), 404)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("all 2 slots are taken", retry_after_s=2.1), 429),
        (RetryableError("restarting"), 503),
        (BadAnswer("NaN"), 500),
    ],
)
def test_what_the_predictor_says_reaches_the_client(
    bench: Bench, error: Exception, status: int
) -> None:
    def fail() -> None:
        raise error

    bench.labeller.before = fail
    answer = infer(bench, rows())
    assert refused(answer, status) == str(error)
    # Whole seconds: there is no room yet after two.
    assert answer.headers.get("retry-after") == ("3" if status == 429 else None)


def test_a_deadline_that_a_request_names_counts(bench: Bench) -> None:
    began = time.monotonic()
    assert infer(bench, {**rows(), "parameters": {"timeout": 2_000_000}}).status_code == 200
    (deadline_s,) = bench.labeller.deadlines_s
    assert deadline_s is not None
    assert began + 2 < deadline_s <= time.monotonic() + 2

    def late() -> None:
        raise DeadlineExceeded("its deadline was over before its turn came")

    bench.labeller.before = late
    assert "its deadline was over" in refused(infer(bench, rows()), 504)


def test_a_port_that_is_taken_is_named_by_its_option(
    bench: Bench, make: Callable[..., Bench]
) -> None:
    port = url_of(bench.server).rpartition(":")[2]
    with pytest.raises(AddressInUse, match=f"{port}: choose another port with --http"):
        make(http=port)


def test_another_instance_is_refused(bench: Bench) -> None:
    answer = infer(bench, {**rows(), "parameters": {"teacher_id": "t9"}})
    assert "this is 't1'" in refused(answer, 412)
    assert bench.refused("wrong_instance") == 1


def test_much_json_keeps_nobody_else_waiting(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many send it, while the first of it is read."""
    bench, go, many = make(slots=1), threading.Event(), 24  # more than threads for the model

    def slowly(head: memoryview, *arguments: Any, **names: Any) -> Any:
        if len(head) > 64 << 10:
            assert go.wait(WAIT_S)
        return json_tensors.decode_request(head, *arguments, **names)

    monkeypatch.setattr(inference, "decode_request", slowly)
    with ThreadPoolExecutor(many) as threads:
        held = [threads.submit(infer, bench, rows(4000)) for _ in range(many)]
        try:
            calls = bench.server._methods.infer_calls
            wait_for(lambda: len(calls) == many and not calls._owing)
            assert infer(bench, rows(2)).status_code == 200
            assert bench.infer(2).outputs["double"].shape == (2, 4)
        finally:
            go.set()
        assert [future.result().status_code for future in held] == [200] * many


def test_a_body_beyond_the_limit_is_not_read(bench: Bench) -> None:
    large = bytes((1 << 20) + 1)
    words = refused(ask(bench, "POST", INFER, content=large), 413)
    assert "larger than max (1048577 vs. 1048576 bytes)" in words

    def pieces() -> Iterator[bytes]:
        for _ in range(9):
            yield bytes(1 << 17)

    assert "larger than max" in refused(ask(bench, "POST", INFER, content=pieces()), 413)
    assert bench.refused("too_large") == 2
    assert infer(bench, rows()).status_code == 200


def test_a_compressed_body_is_refused(bench: Bench) -> None:
    answer = infer(bench, rows(), **{"Content-Encoding": "gzip"})
    assert "not with Content-Encoding gzip" in refused(answer, 415)


def test_a_body_that_does_not_come_ends_its_request(make: Callable[..., Bench]) -> None:
    bench = make(receive_s=0.3)
    with _half_sent(bench) as connection:
        answer = _whole(connection)
    assert b"503" in answer.split(b"\r\n")[0]
    assert b"did not come within 0.3 s" in answer


def test_a_body_that_does_not_come_makes_room_for_others(make: Callable[..., Bench]) -> None:
    bench = make(max_calls_per_peer=1)
    with _half_sent(bench) as connection:
        wait_for(lambda: len(bench.server._methods.infer_calls) == 1)
        assert infer(bench, rows()).status_code == 200
        assert b"429" in connection.recv(4096).split(b"\r\n")[0]
    bench.infer()


def _half_sent(bench: Bench) -> socket.socket:
    connection = socket.create_connection(_address(bench), WAIT_S)
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{"
    connection.sendall(head.encode())
    return connection


def _whole(connection: socket.socket) -> bytes:
    """An answer whose body is one JSON object; the connection stands on."""
    answer = b""
    while not answer.endswith(b"}"):
        more = connection.recv(4096)
        assert more, answer
        answer += more
    return answer


def _address(bench: Bench) -> tuple[str, int]:
    host, port = url_of(bench.server).removeprefix("http://").split(":")
    return host, int(port)


def test_what_is_no_http_is_told_so_in_json(bench: Bench) -> None:
    with socket.create_connection(_address(bench), WAIT_S) as connection:
        connection.sendall(b"\x16\x03\x01 what?\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    wait_for(lambda: bench.refused("malformed") == 1)


def test_a_connection_that_asks_nothing_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_IDLE_S", 0.3)
    began = time.monotonic()
    with socket.create_connection(_address(bench), WAIT_S) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: ")  # and no more
        assert connection.recv(1) == b""
    assert 0.2 < time.monotonic() - began < WAIT_S


def test_the_longest_idle_connection_makes_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 3)
    with contextlib.ExitStack() as open_:
        idle, http = [], bench.server._http
        assert http is not None
        known = http._server.server_state
        for count in range(1, 4):
            connection = socket.create_connection(_address(bench), WAIT_S)
            idle.append(open_.enter_context(connection))
            wait_for(lambda count=count: len(known.connections) == count)  # type: ignore[misc]
        assert infer(bench, rows()).status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""
        idle[1].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[1].recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Origin": "http://elsewhere.example"}, 403), ({"Host": "elsewhere.example"}, 421)],
)
def test_web_pages_are_kept_out(bench: Bench, headers: dict[str, str], status: int) -> None:
    refused(infer(bench, rows(), **headers), status)
    assert bench.labeller.backend.runs == []


@pytest.fixture
def tokens(tmp_path: Path) -> ServerSecurity:
    lines = "student:resnet s3cret\nviewer:grafana l00k\n"
    return ServerSecurity(tokens_file=write_secret(tmp_path / "tokens", lines))


def test_without_a_token_nothing_is_told_but_health(
    make: Callable[..., Bench], tokens: ServerSecurity
) -> None:
    bench = make(security=tokens)
    for number, (method, path) in enumerate(GATED, start=1):
        answer = ask(bench, method, path)
        assert "no token came with the call" in refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert bench.refused("unauthenticated") == number
    assert ask(bench, "GET", "/v2/health/live").status_code == 200
    assert ask(bench, "GET", "/v2/health/ready").status_code == 200


def test_a_student_is_served_and_a_viewer_may_only_look(
    make: Callable[..., Bench], tokens: ServerSecurity
) -> None:
    bench = make(security=tokens)
    assert infer(bench, rows(), Authorization="Bearer s3cret").status_code == 200
    viewer = {"Authorization": "Bearer l00k"}
    assert ask(bench, "GET", "/v2/models/resnet", headers=viewer).status_code == 200
    assert "viewer:grafana" in refused(infer(bench, rows(), **viewer), 403)
    assert bench.refused("forbidden") == 1


def test_tls_asks_for_a_certificate_where_there_is_a_ca(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    import ssl

    authority = Authority(tmp_path)
    bench = make(security=ServerSecurity(authority.issue("server")))
    for name, status in (("student:resnet", 200), ("viewer:grafana", 403)):
        files = authority.issue(name.replace(":", "-"), name)
        context = ssl.create_default_context(cafile=str(files.ca))
        assert files.certificate is not None
        context.load_cert_chain(files.certificate, files.key)
        answer = ask(bench, "POST", INFER, json=rows(), verify=context)
        assert answer.status_code == status, answer.text
    import httpx

    nobody = ssl.create_default_context(cafile=str(files.ca))
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        ask(bench, "POST", INFER, json=rows(), verify=nobody)


def test_a_stop_lets_what_is_being_answered_finish(make: Callable[..., Bench]) -> None:
    bench = make()
    inside, go, answers = threading.Event(), threading.Event(), []

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    asking = threading.Thread(target=lambda: answers.append(infer(bench, rows())))
    stopping = threading.Thread(target=lambda: bench.server.stop(WAIT_S))
    asking.start()
    assert inside.wait(WAIT_S)
    stopping.start()
    go.set()
    asking.join()
    stopping.join()
    assert answers[0].status_code == 200


def test_what_is_missing_is_said(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("edl.teacher.http")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UsageError, match=r"HTTP needs uvicorn.*pip install 'edl-dist\[http\]'"):
        make()
