"""The protocol over HTTP: answers, statuses, limits and counts as of gRPC."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto import json_tensors
from edl.runtime import errors
from edl.teacher.request import TeacherOverloaded
from edl.teacher.servers import http_app
from edl.tests.teacher.bench import WAIT_S, Bench, Make
from edl.tests.teacher.bench_http import (
    CHUNKED,
    GET,
    LENGTH,
    Talk,
    ask,
    batch,
    head,
    infer,
    numbers,
    refused,
    rows,
    url_of,
)
from edl.tests.teacher.fakes import array
from edl.tests.teacher.segments import shared
from edl.tests.waiting import wait_until


def test_probes_and_metadata(bench: Bench) -> None:
    assert ask(bench, "GET", "/v2/health/live").status_code == 200
    assert ask(bench, "GET", "/v2/health/ready").status_code == 200
    server = ask(bench, "GET", "/v2").json()
    assert server["name"] == "edl-teacher"
    assert {"statistics", "system_shared_memory", "binary_tensor_data"} <= set(server["extensions"])
    for path in ("/v2/models/resnet", "/v2/models/resnet/versions/1"):
        assert ask(bench, "GET", f"{path}/ready").status_code == 200
        assert ask(bench, "GET", path).json() == {
            "name": "resnet", "versions": ["1"], "platform": "fake",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [
                {"name": "sum", "datatype": "FP32", "shape": [-1]},
                {"name": "double", "datatype": "FP32", "shape": [-1, 4]},
            ],
        }  # fmt: skip
    index = ask(bench, "POST", "/v2/repository/index", json={"ready": True}).json()
    assert index == [{"name": "resnet", "version": "1", "state": "READY", "reason": ""}]


def test_a_loading_model_is_live_and_not_ready(bench: Bench) -> None:
    bench.labeller.ready = False
    assert ask(bench, "GET", "/v2/health/live").status_code == 200
    assert ask(bench, "GET", "/v2/health/ready").status_code == 503
    assert ask(bench, "GET", "/v2/models/resnet/ready").status_code == 503
    assert ask(bench, "POST", "/v2/repository/index", json={"ready": True}).json() == []
    (model,) = ask(bench, "POST", "/v2/repository/index").json()
    assert (model["state"], model["reason"]) == ("LOADING", "the model is loading")
    assert refused(infer(bench, rows()), 503) == "the model is loading"


def test_labels_in_json(bench: Bench) -> None:
    answer = infer(bench, {"id": "17", **rows()})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    message = answer.json()
    assert (message["model_name"], message["model_version"], message["id"]) == ("resnet", "1", "17")
    assert message["parameters"]["teacher_id"] == "t1"
    tensor = {"name": "double", "datatype": "FP32", "shape": [3, 4]}
    assert message["outputs"][1] == {**tensor, "data": (array(3, 4) * 2).ravel().tolist()}
    assert bench.requests("answered") == 1
    assert bench.count("edl_teacher_samples_total") == 3
    assert bench.count("edl_teacher_sent_bytes_total") == len(answer.content)


def test_tensors_in_shared_memory(make: Make) -> None:
    x, bench = array(3, 4), make(allow_system_shm=True)
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
    for number in (True, -1, 1 << 63, 4096.0, "4096", None):
        for name in ("offset", "byte_size"):
            answer = ask(bench, "POST", f"{path}/register", json={**body, name: number})
            assert "say which memory" in refused(answer, 400)
    assert ask(bench, "GET", "/v2/systemsharedmemory/status").json() == []


def test_a_host_that_is_no_name_is_refused_or_ignored(make: Make) -> None:
    request = GET.replace(b"localhost", b"[").replace(b"/v2/health/live", b"/nothing")
    for http, status in (("0", 421), ("0.0.0.0:0", 404)):
        bench = make(http=http)
        with Talk(bench) as talk:
            assert talk.ask(request).status == status


def test_a_key_that_is_no_unicode_is_refused(make: Make) -> None:
    bench = make(allow_system_shm=True)
    path = "/v2/systemsharedmemory/region/batch/register"
    body = rb'{"key": "edl-\ud800", "byte_size": 8}'
    assert "surrogates" in refused(ask(bench, "POST", path, content=body), 400)
    assert bench.refused("malformed") == 1


def test_statistics(bench: Bench) -> None:
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


def test_unknown_paths_and_models(bench: Bench) -> None:
    wrong = [
        ("POST", "/vgg/infer", 400, "unknown model 'vgg'"),
        ("POST", "/resnet/versions/9/infer", 400, "unknown version '9'"),
        ("POST", "/resnet/infer/", 404, "Not Found"),
        ("POST", "/resnet", 405, "Method Not Allowed"),
        *(("GET", f"/vgg{end}", 404, "unknown model 'vgg'") for end in ("", "/ready", "/stats")),
    ]
    for count, (method, path, status, words) in enumerate(wrong, start=1):
        body = {"json": rows()} if method == "POST" else {}
        assert words in refused(ask(bench, method, f"/v2/models{path}", **body), status)
        assert bench.refused("malformed") == count


def test_errors_of_the_model_become_statuses(bench: Bench) -> None:
    failures: dict[int, Exception] = {
        429: TeacherOverloaded("all 2 slots are taken", retry_after_s=2.1),
        503: errors.RetryableError("restarting"),
        504: errors.DeadlineExceeded("its deadline was over before its turn came"),
        500: errors.BadAnswer("NaN"),
        412: errors.WrongInstance("this is 't1'"),
    }
    for status, error in failures.items():
        bench.fail(error)
        answer = infer(bench, rows())
        assert refused(answer, status) == str(error)
        # Whole seconds: there is no room yet after two.
        assert answer.headers.get("retry-after") == ("3" if status == 429 else None)
    held = bench.hold()
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(infer, bench, {**rows(), "parameters": {"timeout": 60_000_000}})
        held.wait()
        bench.advance(60)
        assert "before the model answered" in refused(late.result(WAIT_S), 504)
    held.release()
    wait_until(lambda: bench.labeller.released == 1)


def test_a_port_in_use_is_named_by_its_option(bench: Bench, make: Make) -> None:
    port = url_of(bench.server).rpartition(":")[2]
    with pytest.raises(errors.AddressInUse, match=f"{port}: choose another port with --http"):
        make(http=port)


def test_large_json_delays_no_small_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many send it, while the first of it is read."""
    bench, go, many = make(slots=1), threading.Event(), 24  # more than threads for the model

    def slowly(head: memoryview, *arguments: Any, **names: Any) -> Any:
        if len(head) > 64 << 10:
            assert go.wait(WAIT_S)
        return json_tensors.decode_request(head, *arguments, **names)

    monkeypatch.setattr(http_app, "decode_request", slowly)
    large = rows(4000)
    with ThreadPoolExecutor(many) as threads:
        held = [threads.submit(infer, bench, large) for _ in range(many)]
        try:
            wait_until(lambda: bench.recorder.in_flight == many)
            assert infer(bench, rows(2)).status_code == 200
            assert bench.infer(2).outputs["double"].shape == (2, 4)
        finally:
            go.set()
        assert [future.result().status_code for future in held] == [200] * many


def test_a_missing_package_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("edl.teacher.servers.http")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(errors.UsageError, match=r"HTTP needs uvicorn.*pip install .*\[http\]"):
        make()


_DATA = json.dumps(rows(3)).encode()
#: Requests, the statuses of their answers, and a part of these.
_REQUESTS = [
    *((batch(x), 200, (2 * x).tobytes()) for x in (numbers(3), numbers(40), numbers(5000))),
    (head(len(_DATA)) + _DATA, 200, b"20.0,22.0]"),
    (GET, 200, b""),
    (CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(_DATA), _DATA), 200, b"20.0,22.0]"),
    (head(7) + b"nothing", 400, b'{"error"'),
    (head(0), 400, b'{"error"'),
    (head((1 << 20) + 1) + bytes((1 << 20) + 1), 413, b'{"error"'),
    (batch(numbers(40), Origin="http://page"), 403, b'{"error"'),
    (batch(numbers(40), Host="elsewhere.example"), 421, b'{"error"'),
    (batch(numbers(40), **{"Content-Encoding": "gzip"}), 415, b"gzip is not supported"),
    *(
        (head(48, **{LENGTH: length}) + bytes(48), 400, LENGTH.encode())
        for length in (10**9, -1, "x", "")
    ),
    (head(4, "/v2/models/resnet/nothing") + b"1234", 404, b'{"error"'),
]
_ANSWER = re.compile(
    rb"HTTP/1\.1 (\d+) [^\r]+\r\n(?:[^\r]+\r\n)*?content-length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n"
)


@pytest.fixture(scope="module")
def shared_bench() -> Iterator[Bench]:
    with closing(Bench(http="0", slots=64)) as bench:
        yield bench


@given(
    numbers=st.lists(st.sampled_from(range(len(_REQUESTS))), min_size=1, max_size=8),
    cuts=st.lists(st.floats(0, 1), max_size=12) | st.integers(1, 2000),
)
def test_requests_of_a_connection_are_answered_in_their_order(
    shared_bench: Bench, numbers: list[int], cuts: list[float] | int
) -> None:
    """However their bytes are cut into pieces."""
    asked = [_REQUESTS[number] for number in numbers]
    data = b"".join(request for request, *_ in asked)
    if isinstance(cuts, int):
        at = [*range(0, min(200 * cuts, len(data)), cuts), len(data)]
    else:
        at = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
    with Talk(shared_bench) as talk:
        talk.say(*(data[begin:end] for begin, end in pairwise(at)))
        got = b""
        for _, status, part in asked:
            while not (answer := _ANSWER.match(got)) or len(got) < answer.end() + int(answer[2]):
                more = talk.socket.recv(1 << 20)
                assert more, got[-300:]
                got += more
            end = answer.end() + int(answer[2])
            assert int(answer[1]) == status
            assert part in got[answer.end() : end]
            got = got[end:]
    assert got == b""
