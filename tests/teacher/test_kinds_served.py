"""Teachers of several kinds as real processes: started by their flags, asked over the wire."""

from __future__ import annotations

import time
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
from edl.teacher.config import PredictorConfig
from edl.teacher.predictor_session import _command
from edl.tests.teacher import same_network

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


def test_an_onnx_model_behind_preprocessing_takes_bytes_with_the_channels_last(
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


@pytest.mark.serial
def test_a_paced_teacher_keeps_its_rate_and_says_everywhere_that_it_is_emulated() -> None:
    stand_in = ("--model", "edl.teacher.stand_in:images", "--micro-batch", "32")
    images = np.random.default_rng(2).integers(0, 256, (32, 3, 224, 224), np.uint8)
    with served(*stand_in, "--backend", "paced", "--rate", "640") as (process, channel):
        assert "on emulated (640 samples/s); no coordinator" in "\n".join(process.tail())
        assert metadata(channel).platform == "emulated_callable"
        labelled(channel, images)
        began_s = time.perf_counter()
        answers = [labelled(channel, images) for _ in range(4)]
        assert time.perf_counter() - began_s >= 4 * 32 / 640
    for answer in answers:
        assert str(answer.parameters["numerics_id"]).startswith("emulated-paced-")
        # Less by what it took to hand the batch over: the device is at work from then on.
        assert float(answer.parameters["device_seconds"]) >= 0.8 * 32 / 640
    logits = answers[0].outputs["logits"]
    assert logits.shape == (32, 1000)
    assert len(np.unique(logits[:, 0])) == 32


def test_what_is_called_fp32_is_fp32_on_gpus_too() -> None:
    command = _command(PredictorConfig("m"), 3, 4, 5)
    assert command.env is not None
    assert command.env["NVIDIA_TF32_OVERRIDE"] == "0"
