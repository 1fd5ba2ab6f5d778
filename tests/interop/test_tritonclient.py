"""NVIDIA's stock client, unchanged, against a real teacher process."""

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

PROGRAM = Path(__file__).with_name("triton_program.py")
START_S = 60.0


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client saw; `outputs` are the labels it got, `expected` those of the model here."""
    folder = tmp_path_factory.mktemp("triton")
    model = str(export(folder))
    image = np.random.default_rng(3).standard_normal((13, 1, 8, 8), dtype=np.float32)
    np.savez(folder / "in.npz", image=image)
    teacher = start(
        python_command("teacher", "edl.teacher", "serve", "--model", model, "--service", "net")
    )
    try:
        address = teacher.expect(r"^teacher ready: \S+ net on (\S+)$", START_S)[1]
        files = [str(folder / "in.npz"), str(folder / "out.npz")]
        argv = (sys.executable, "-P", str(PROGRAM), address, "net", *files)
        client = start(Command("tritonclient", argv))
        assert client.wait(START_S) == 0, client.tail()
    finally:
        teacher.stop()
    with np.load(folder / "out.npz") as outputs:
        labels = dict(outputs)
    backend = open_backend(model)
    expected = run_in_micro_batches(backend.run, {"image": image}, 8)
    return {**json.loads(client.tail(1)[0]), "outputs": labels, "expected": expected}


def test_it_reads_that_the_server_lives_and_what_it_serves(seen: dict[str, Any]) -> None:
    assert seen["live"] is seen["ready"] is seen["model_ready"] is True
    assert seen["server"]["name"] == "edl-teacher"
    model = seen["model"]
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


def test_it_gets_the_logits_of_the_model_in_process_bit_for_bit(seen: dict[str, Any]) -> None:
    assert seen["request_id"] == "17"
    assert list(seen["outputs"]) == list(seen["expected"])
    for name, array in seen["expected"].items():
        assert seen["outputs"][name].dtype == array.dtype
        assert seen["outputs"][name].tobytes() == array.tobytes()
    assert seen["asked_for_one"] == list(seen["expected"])[1:]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("wrong_shape", "input 'image' has shape [2, 1, 9, 8], expected [-1, 1, 8, 8]"),
        ("wrong_datatype", "input 'image' has datatype FP64, expected FP32"),
        ("wrong_input", "unknown input 'picture': expected ['image']"),
        ("wrong_output", "unknown output 'logit': expected some of ['"),
        ("wrong_model", "unknown model 'vgg': this teacher serves 'net'"),
    ],
)
def test_it_is_told_what_is_wrong(seen: dict[str, Any], what: str, words: str) -> None:
    status, message = seen[what]
    assert status == "StatusCode.INVALID_ARGUMENT"
    assert words in message
