"""Each backend on the device: its labels, how long it took, and how many rows it takes at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edl.proto.arena import Array
from edl.proto.datatypes import TensorSpec
from edl.teacher.backends import async_submit_of, submit_to
from edl.teacher.backends.onnx import has_cuda
from edl.teacher.backends.selection import open_backend
from edl.teacher.backends.torch_graphs import GraphedCalls
from edl.teacher.microbatch import SIZES, fastest_micro_batch, warm_up
from edl.tests.gpu import networks
from edl.tests.gpu.conftest import TestDevice, needs_gpu
from edl.tests.teacher import same_network

ROWS = 64


def images(rows: int = 8) -> Array:
    return np.random.default_rng(1).standard_normal((rows, 1, 8, 8), np.float32)


def check_labels(model: str, device: TestDevice, **options: object) -> None:
    """The device's labels are the CPU's but for rounding, and the same each time, also queued."""
    backend = open_backend(model, device=device.teacher, **options)  # type: ignore[arg-type]
    on_cpu = open_backend(model, **options)  # type: ignore[arg-type]
    [name] = [tensor.name for tensor in backend.spec.inputs]
    once, again = backend.run({name: images()}), backend.run({name: images()})
    expected = on_cpu.run({name: images()})
    assert backend.spec.content_id == on_cpu.spec.content_id
    assert ("gpu" in backend.spec.numerics) == device.on_gpu
    for output, array in expected.items():
        np.testing.assert_allclose(once[output], array, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(once[output], again[output])
    submit = submit_to(backend)
    queued = [submit({name: images() + number}) for number in range(6)]
    for number, finish in enumerate(queued):
        outputs, _ = finish()
        for output, array in on_cpu.run({name: images() + number}).items():
            np.testing.assert_allclose(outputs[output], array, rtol=1e-4, atol=1e-4)


def test_a_module(device: TestDevice) -> None:
    check_labels(f"{same_network.NAME}:by_torch", device)


def test_torchscript(device: TestDevice, tmp_path: Path) -> None:
    image = TensorSpec.parse(same_network.IMAGE)
    check_labels(str(same_network.write_script(tmp_path)), device, inputs=[image])


def test_an_exported_program(device: TestDevice, tmp_path: Path) -> None:
    check_labels(str(same_network.write_exported(tmp_path)), device)


def test_onnx(device: TestDevice, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    if device.on_gpu and not has_cuda():
        pytest.skip("this onnxruntime has no CUDA: onnxruntime-gpu has")
    pytest.importorskip("onnx")
    check_labels(str(same_network.write_onnx(tmp_path)), device)


def test_paddle(device: TestDevice, tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")
    if device.on_gpu and not paddle.is_compiled_with_cuda():
        pytest.skip("this Paddle has no CUDA: paddlepaddle-gpu has")
    check_labels(str(same_network.write_paddle(tmp_path).with_suffix("")), device)


# --- CUDA graphs


class Counting(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not looked into
    """Counts its calls; some kinds of it cannot be captured."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.kind == "looks at values":
            return {"y": x + 1 if float(x.sum()) > 0 else x - 1}
        return {"y": x + self.calls if self.kind == "changes" else x + 1}


@pytest.mark.parametrize("kind", ["plain", "looks at values", "changes"])
def test_a_graph_replaces_a_network_that_always_does_the_same(
    device: TestDevice, kind: str
) -> None:
    """The network is called no more, unless it looks at values or changes by itself."""
    needs_gpu(device)
    network = Counting(kind)
    calls = GraphedCalls(torch, network)
    counts = []
    with torch.inference_mode():
        for number in range(8):
            x = torch.full((4, 3), float(number) - 4, device="cuda")
            y = calls(x)["y"].cpu()
            expected = {"plain": 1, "looks at values": 1 if number > 4 else -1}
            counts.append(network.calls)
            if kind in expected:
                assert torch.equal(y, x.cpu() + expected[kind])
    replayed = counts[-1] == counts[-2]
    assert replayed == (kind == "plain")


# --- time


def device_s(network: networks.Heavy, rows: int) -> float:
    """Seconds of one call on the GPU, by CUDA's events."""
    network = network.to("cuda")
    x = torch.zeros(rows, len(network.matrix), device="cuda")
    with torch.inference_mode():
        for _ in range(3):
            network(x)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        network(x)
        ended.record()
        ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000


def test_t_t_is_the_time_of_the_device(device: TestDevice) -> None:
    """Within a factor of two: the call alone is a tenth of it on a GPU, or less."""
    needs_gpu(device)
    backend = open_backend(f"{networks.NAME}:heavy_teacher", device=device.teacher)
    expected_s = device_s(networks.heavy(device.torch), ROWS) / ROWS
    assert 0.5 < warm_up(backend, ROWS) / expected_s < 2


def test_work_that_waits_in_the_device_does_not_count(device: TestDevice) -> None:
    needs_gpu(device)
    backend = open_backend(f"{networks.NAME}:heavy_teacher", device=device.teacher)
    assert async_submit_of(backend) is not None
    submit = submit_to(backend)
    batch = {"x": np.zeros((ROWS, backend.spec.inputs[0].shape[1]), np.float32)}
    submit(batch)()
    alone_s = min(submit(batch)()[1] for _ in range(5))
    runs = [submit(batch) for _ in range(8)]
    times_s = [run()[1] for run in runs]
    assert sorted(times_s)[len(times_s) // 2] < 2 * alone_s  # by the wall the last takes 8 of them


def test_the_micro_batch_is_measured(device: TestDevice) -> None:
    backend = open_backend(f"{networks.NAME}:heavy_teacher", device=device.teacher)
    chosen, per_sample_s = fastest_micro_batch(backend)
    assert chosen in per_sample_s
    assert set(per_sample_s) <= set(SIZES)
    if device.on_gpu:
        assert chosen > 1  # a product with a vector leaves most of a GPU idle


def test_a_sweep_is_printed(device: TestDevice) -> None:
    command = [sys.executable, "-P", "-m", "edl", "teacher", "bench"]
    command += ["--model", f"{networks.NAME}:heavy_teacher", "--device", device.teacher]
    command += ["--batch-sizes", "1,8,64", "--json"]
    printed = subprocess.run(command, check=True, timeout=100, capture_output=True).stdout
    rows = json.loads(printed)["rows"]
    assert [row["batch"] for row in rows] == [1, 8, 64]
    assert sum(row["best"] for row in rows) == 1
