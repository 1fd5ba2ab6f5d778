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
    flags = ("--model", model, "--service", "net", "--http", "0")
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


@pytest.mark.parametrize("lane", LANES)
def test_every_lane_gives_the_labels_of_the_model_in_process_bit_for_bit(
    seen: dict[str, Any], lane: str
) -> None:
    assert len(seen["expected"]) == 2
    for name, array in seen["expected"].items():
        labels = seen["lanes"][f"{lane}:{name}"]
        assert (labels.dtype, labels.shape) == (array.dtype, array.shape)
        assert labels.tobytes() == array.tobytes()
    assert {name.partition(":")[0] for name in seen["lanes"]} == set(LANES)


def test_a_request_has_its_id_and_the_outputs_that_it_asks_for(seen: dict[str, Any]) -> None:
    assert seen["request_id"] == "17"
    assert seen["asked_for_one"] == list(seen["expected"])[1:]


def test_a_stream_says_which_request_failed_and_goes_on(seen: dict[str, Any]) -> None:
    first, wrong, last = seen["streamed"]
    assert (first, last) == ("0", "2")
    assert "input 'image' has shape [2, 1, 9, 8], expected [-1, 1, 8, 8]" in wrong


def test_server_and_model_are_described_by_both_protocols(seen: dict[str, Any]) -> None:
    assert seen["live"] is seen["ready"] is seen["model_ready"] is seen["grpc_ready"] is True
    assert seen["server"]["name"] == seen["grpc_server"]["name"] == "edl-teacher"
    model = seen["grpc_model"]
    assert (model["name"], model["versions"], model["platform"]) == (
        "net",
        ["1"],
        "paddle_inference",
    )
    image = {"name": "image", "datatype": "FP32", "shape": ["-1", "1", "8", "8"]}
    assert model["inputs"] == [image]
    assert [(t["datatype"], t["shape"]) for t in model["outputs"]] == [
        ("FP32", ["-1", "10"]),
        ("FP32", ["-1", "144"]),
    ]
    assert "system_shared_memory" in seen["server"]["extensions"]
    assert seen["model"]["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}
    ]
    assert seen["index"] == [{"name": "net", "version": "1", "state": "READY", "reason": ""}]
    assert seen["grpc_index"] == {"models": [{"name": "net", "version": "1", "state": "READY"}]}


def test_statistics_are_those_of_all_lanes(seen: dict[str, Any]) -> None:
    (model,) = seen["statistics"]["model_stats"]
    answered = len(LANES) + 1  # two of the stream
    assert model["inference_stats"]["success"]["count"] == answered
    assert model["inference_stats"]["fail"]["count"] == 2  # one of the stream, one without a region
    assert (model["execution_count"], model["inference_count"]) == (answered, 13 * answered)
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    spent = [model["inference_stats"][part]["ns"] for part in parts]
    assert min(spent[1:]) > 0
    assert sum(spent) == model["inference_stats"]["success"]["ns"]
    (batch,) = model["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == (13, answered)
    (same,) = seen["grpc_statistics"]["model_stats"]
    assert same["execution_count"] == str(answered)


def test_regions_are_listed_until_they_are_unregistered(seen: dict[str, Any]) -> None:
    (region,) = seen["regions"]
    assert (region["name"], region["key"], region["offset"]) == ("batch", "/edl-triton-both", 0)
    assert seen["no_regions"] == {}
    status, words = seen["lost"]
    assert status == "StatusCode.INVALID_ARGUMENT"
    assert "no region 'batch' of this caller is registered here" in words


INVALID = "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("forbidden_key", INVALID, "one begins with 'edl-'"),
        ("unknown_model", "404", "unknown model 'vgg': this teacher serves 'net'"),
        ("wrong_shape", "400", "input 'image' has shape [2, 9], expected [-1, 1, 8, 8]"),
        ("grpc_shape", INVALID, "input 'image' has shape [2, 1, 9, 8], expected [-1, 1, 8, 8]"),
        ("grpc_datatype", INVALID, "input 'image' has datatype FP64, expected FP32"),
        ("grpc_input", INVALID, "unknown input 'picture': expected ['image']"),
        ("grpc_output", INVALID, "unknown output 'logit': expected some of ['"),
        ("grpc_unknown_model", INVALID, "unknown model 'vgg': this teacher serves 'net'"),
    ],
)
def test_it_is_told_what_is_wrong(seen: dict[str, Any], what: str, status: str, words: str) -> None:
    assert seen[what][0] == status
    assert words in seen[what][1]
