"""The protocol over HTTP on a real socket: answers, statuses, limits and counts as of gRPC."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edl.errors import AddressInUse, BadAnswer, DeadlineExceeded, RetryableError, UsageError
from edl.proto import json_tensors
from edl.teacher.http import inference
from edl.teacher.refusals import Overloaded
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.bench_http import LENGTH, ask, infer, refused, rows, url_of
from edl.tests.teacher.fakes import array
from edl.tests.teacher.segments import shared


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
