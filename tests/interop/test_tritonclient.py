"""NVIDIA's stock clients, unchanged, against a real teacher: gRPC, HTTP and shared memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.supervise import Command, python_command, start
from edl.teacher import open_backend, run_in_micro_batches
from edl.tests.teacher.networks import export

PROGRAM = Path(__file__).with_name("triton_client.py")
START_S = 60.0
LANES = ("grpc", "stream", "json", "binary", "default", "grpc-shared", "http-shared", "both")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the clients saw; `lanes` are the labels they got, `expected` those of the model here."""
    folder = tmp_path_factory.mktemp("triton")
    model = str(export(folder))
    image = np.random.default_rng(3).standard_normal((13, 1, 8, 8), dtype=np.float32)
    np.savez(folder / "in.npz", image=image)
    flags = ("--model", model, "--service", "net", "--http", "0", "--allow-system-shm")
    teacher = start(python_command("teacher", "edl.teacher", "serve", *flags))
    try:
        http = teacher.expect(r"HTTP on http://(\S+)/v2$", START_S)[1]
        address = teacher.expect(r"^teacher ready: \S+ net on (\S+)$", START_S)[1]
        files = [str(folder / "in.npz"), str(folder / "out.npz")]
        argv = (sys.executable, "-P", str(PROGRAM), address, http, "net", *files)
        client = start(Command("tritonclient", argv))
        assert client.wait(START_S) == 0, client.tail()
    finally:
        teacher.stop()
    with np.load(folder / "out.npz") as outputs:
        lanes = dict(outputs)
    backend = open_backend(model)
    expected = run_in_micro_batches(backend.run, {"image": image}, 8)
    return {**json.loads(client.tail(1)[0]), "lanes": lanes, "expected": expected}


def test_every_lane_gives_the_labels_of_the_model_in_process_bit_for_bit(
    seen: dict[str, Any],
) -> None:
    expected = seen["expected"]
    assert len(expected) == 2
    assert set(seen["lanes"]) == {f"{lane}:{name}" for lane in LANES for name in expected}
    for key, labels in seen["lanes"].items():
        array = expected[key.partition(":")[2]]
        assert (labels.dtype, labels.shape) == (array.dtype, array.shape)
        assert labels.tobytes() == array.tobytes(), key


def test_a_request_has_its_id_and_the_outputs_that_it_asks_for(seen: dict[str, Any]) -> None:
    assert seen["request_id"] == "17"
    assert seen["asked_for_one"] == list(seen["expected"])[1:]


def test_a_stream_says_which_request_failed_and_goes_on(seen: dict[str, Any]) -> None:
    first, wrong, last = seen["streamed"]
    assert (first, last) == ("0", "2")
    assert "input 'image' has shape [2, 1, 9, 8], expected [-1, 1, 8, 8]" in wrong


def test_server_and_model_are_described_by_both_protocols(seen: dict[str, Any]) -> None:
    assert seen["ready"] is seen["grpc_ready"] is True
    assert seen["server"]["name"] == seen["grpc_server"]["name"] == "edl-teacher"
    assert "system_shared_memory" in seen["server"]["extensions"]
    image = {"name": "image", "datatype": "FP32", "shape": ["-1", "1", "8", "8"]}
    assert seen["grpc_model"]["inputs"] == [image]
    assert seen["model"]["inputs"] == [image | {"shape": [-1, 1, 8, 8]}]
    assert seen["index"] == [{"name": "net", "version": "1", "state": "READY", "reason": ""}]
    assert seen["grpc_index"] == {"models": [{"name": "net", "version": "1", "state": "READY"}]}


def test_statistics_are_those_of_all_lanes(seen: dict[str, Any]) -> None:
    (model,) = seen["statistics"]["model_stats"]
    answered = len(LANES) + 1  # two of the stream
    assert model["inference_stats"]["success"]["count"] == answered
    assert model["inference_stats"]["fail"]["count"] == 2  # one of the stream, one without a region
    assert (model["execution_count"], model["inference_count"]) == (answered, 13 * answered)
    (same,) = seen["grpc_statistics"]["model_stats"]
    assert same["execution_count"] == str(answered)


def test_errors_have_the_status_of_each_protocol(seen: dict[str, Any]) -> None:
    unknown = ("unknown_model", "grpc_unknown_model")
    assert [seen[call][0] for call in unknown] == ["404", "StatusCode.INVALID_ARGUMENT"]
    assert all("unknown model 'vgg'" in seen[call][1] for call in unknown)
    assert seen["lost"][0] == "StatusCode.INVALID_ARGUMENT"
    assert "no region 'batch' of this caller is registered here" in seen["lost"][1]


def test_regions_are_listed_until_they_are_unregistered(seen: dict[str, Any]) -> None:
    (region,) = seen["regions"]
    assert (region["name"], region["key"], region["offset"]) == ("batch", "/edl-triton-both", 0)
    assert seen["no_regions"] == {}
