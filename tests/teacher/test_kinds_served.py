"""Teachers of several kinds as real processes, started by their flags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.arena import Array
from edl.supervise import Process, python_command, start
from edl.tests.teacher import same_network

pytestmark = pytest.mark.system

START_S = 60.0
METHODS = "/inference.GRPCInferenceService"


@contextmanager
def served(*flags: str) -> Iterator[tuple[Process, grpc.Channel]]:
    process = start(python_command("teacher", "edl.teacher", "serve", "--service", "net", *flags))
    try:
        address = process.expect(r"^teacher ready: \S+ net on (\S+)$", START_S)[1]
        with grpc.insecure_channel(address) as channel:
            yield process, channel
    finally:
        process.stop()


def metadata(channel: grpc.Channel) -> pb.ModelMetadataResponse:
    ask = channel.unary_unary(
        f"{METHODS}/ModelMetadata",
        pb.ModelMetadataRequest.SerializeToString,
        pb.ModelMetadataResponse.FromString,
    )
    answer: pb.ModelMetadataResponse = ask(pb.ModelMetadataRequest(name="net"), timeout=START_S)
    return answer


def labelled(channel: grpc.Channel, image: Array) -> tensors.InferResponse:
    request = tensors.encode_request(model_name="net", inputs={"image": image})
    answer = channel.unary_unary(f"{METHODS}/ModelInfer", None, None)(request, timeout=START_S)
    return tensors.decode_response(answer)


def test_an_onnx_model_with_preprocessing(
    tmp_path: Path,
) -> None:
    model = same_network.write_onnx(tmp_path)
    steps = ("--preprocess", "nhwc", "--preprocess", "unit")
    pixels = np.random.default_rng(2).integers(0, 256, (11, 8, 8, 1), np.uint8)
    with served("--model", str(model), *steps) as (_, channel):
        about = metadata(channel)
        answer = labelled(channel, pixels)
    assert about.platform == "onnxruntime"
    assert [(t.name, t.datatype, list(t.shape)) for t in about.inputs] == [
        ("image", "UINT8", [-1, 8, 8, 1])
    ]
    expected = same_network.label({"image": pixels.transpose(0, 3, 1, 2) / np.float32(255)})
    for name, array in expected.items():
        np.testing.assert_allclose(answer.outputs[name], array, atol=1e-4)


def test_a_paced_teacher_says_everywhere_that_it_is_emulated() -> None:
    stand_in = ("--model", "edl.teacher.stand_in:images", "--micro-batch", "8")
    images = np.random.default_rng(2).integers(0, 256, (8, 3, 224, 224), np.uint8)
    with served(*stand_in, "--backend", "paced", "--rate", "640") as (process, channel):
        assert "on emulated (640 samples/s); no coordinator" in "\n".join(process.tail())
        assert metadata(channel).platform == "emulated_callable"
        answer = labelled(channel, images)
    assert str(answer.parameters["numerics_id"]).startswith("emulated-paced-")
    logits = answer.outputs["logits"]
    assert logits.shape == (8, 1000)
    assert len(np.unique(logits[:, 0])) == 8
