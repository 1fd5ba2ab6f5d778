"""The speed of a teacher relative to a bare loop of its framework on the same device."""

from __future__ import annotations

import importlib
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from ...distill_reader import DistilReader
from ...proto.channel import Channel
from ...runtime.errors import ModelError
from ...teacher.backends.onnx import has_cuda
from ..children import Child
from ..paced import SERVICE, Repeated
from ..paced.teachers import start_teachers
from ..report import BenchmarkReport, Estimate, Goal, Row, interleaved
from . import networks

log = logging.getLogger(__name__)

_MODULE: Final = networks.__name__
#: `--device` of `edl bench` -> `--devices` of a teacher.
DEVICES: Final = {"cpu": "cpu", "cuda": "gpu:0"}
#: Number of logits per row that are sent.
TOP: Final = 20
#: Least speed of a teacher relative to the bare loop.
DELIVERED: Final = 0.97
#: Approximate length of a turn of the bare loop, in seconds.
_TURN_S: Final = 1.5
_QUICK_TURN_S: Final = 0.3
_MIN_BATCHES: Final = 4
#: Batches of the first turn, which determines the number of batches of all others.
_TRIAL: Final = 4
#: Warm-up batches, which choose kernels and allocate memory.
_WARM_UP: Final = 10

#: A function that labels one batch.
Label = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Network:
    """A network to compare.

    Attributes:
        name: name in the table.
        factory: `module:function` of a PyTorch module.
        rows: rows of a batch, which is also the micro-batch.
        framework: "torch", or "onnx": the module is exported and runs in onnxruntime.
    """

    name: str
    factory: str
    rows: int
    framework: str = "torch"


NETWORKS: Final = {
    "cuda": (
        Network("ResNet50 float32", f"{_MODULE}:resnet50", 64),
        Network("ResNet50 bfloat16", f"{_MODULE}:resnet50_bf16", 64),
        Network("ViT-B/16 float32", f"{_MODULE}:vit_b", 64),
        Network("ViT-B/16 bfloat16", f"{_MODULE}:vit_b_bf16", 64),
        Network("ResNet50 float32, ONNX", f"{_MODULE}:resnet50", 64, "onnx"),
        Network("ViT-B/16 float32, ONNX", f"{_MODULE}:vit_b", 64, "onnx"),
    ),
    "cpu": (
        Network("ResNet50 float32", f"{_MODULE}:resnet50", 8),
        Network("ViT-B/16 float32", f"{_MODULE}:vit_b", 8),
        Network("ResNet50 float32, ONNX", f"{_MODULE}:resnet50", 8, "onnx"),
    ),
}


def compare(device: str, quick: bool) -> BenchmarkReport:
    """Compare each network in a bare loop and through a teacher and a reader: bytes in, top-k out.

    Args:
        device: "cuda" or "cpu".
        quick: shorter turns.
    """
    rows: list[Row] = []
    goals: list[Goal] = []
    for network in NETWORKS[device]:
        if network.framework == "onnx" and not _can_run_onnx(device):
            log.info("%s is left out: onnxruntime for %s is not installed", network.name, device)
            continue
        relative_speed, bare_per_s = _compare(network, device, _QUICK_TURN_S if quick else _TURN_S)
        rows.append(
            {
                "network": network.name,
                "device": device,
                "rows": network.rows,
                "bare_samples_per_s": bare_per_s,
                **relative_speed.columns("delivered"),
            }
        )
        name = f"{network.name} on {device}: speed relative to the bare loop"
        goals.append(Goal.judge(name, relative_speed, ">=", DELIVERED))
    return BenchmarkReport(rows, goals)


def _can_run_onnx(device: str) -> bool:
    try:
        return has_cuda() or device == "cpu"
    except ModelError:  # onnxruntime is not installed
        return False


def _compare(network: Network, device: str, turn_s: float) -> tuple[Estimate, float]:
    """Return the teacher's speed relative to the bare loop, and the loop's samples per second."""
    options = ("--devices", DEVICES[device], "--micro-batch", str(network.rows))
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="edl-bench-"))
        arguments = (network.framework, network.factory, device, network.rows, folder)
        bare = Child(stack, "the bare loop", run_bare_loop, *arguments)
        model = bare.receive()["model"]
        [(address, _)] = start_teachers(stack, [options], model)
        source = Repeated(networks.picture(network.rows), count=_TRIAL)
        reader = stack.enter_context(
            DistilReader(source, service=SERVICE, teachers=[address], label_form=f"topk:{TOP}")
        )

        def alone() -> float:
            return float(bare.ask("run", batches=source.count)["seconds"])

        def in_teacher() -> float:
            began_s = time.perf_counter()
            for _ in reader:
                pass
            return time.perf_counter() - began_s

        in_teacher()  # starts the engine
        source.count = max(_MIN_BATCHES, round(turn_s * _TRIAL / alone()))
        bare_s, served_s = interleaved(alone, in_teacher)
    bare_per_s = network.rows * source.count / statistics.median(bare_s)
    return Estimate.of_ratio(bare_s, served_s), bare_per_s


# --- the process of the bare loop: a network in its framework, without code of a teacher


def run_bare_loop(
    channel: Channel, framework: str, factory: str, device: str, rows: int, folder: str
) -> None:
    """Label batches on request; see `time_runs`.

    For each batch, it copies bytes from the host to the device, runs the network, and selects the
    `TOP` greatest logits: in PyTorch on the device, with onnxruntime on the host.

    Args:
        channel: its first message to the benchmark has the model that a teacher should serve.
        framework: "torch", or "onnx": the network is exported to `folder`.
        factory: `module:function` of a PyTorch module.
        device: "cuda" or "cpu".
        rows: rows of a batch.
        folder: folder for the exported network.
    """
    model = export(factory, Path(folder)) if framework == "onnx" else factory
    make = onnxruntime_loop if framework == "onnx" else torch_loop
    label = make(model, device, rows)
    for _ in range(_WARM_UP):
        label()
    channel.send("ready", model=model)
    time_runs(channel, label)


def time_runs(channel: Channel, label: Label) -> None:
    """Label the number of batches that each message asks for; answer with the seconds."""
    for message in channel:
        began_s = time.perf_counter()
        for _ in range(message["batches"]):
            label()
        channel.send("ran", seconds=time.perf_counter() - began_s)


def torch_loop(factory: str, device: str, rows: int) -> Label:
    """Return a function that labels a batch with the factory's module in PyTorch.

    As in a teacher, TF32 is off.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    network = _create(factory)[0].to(device).eval()
    batch = networks.picture(rows)

    def label() -> tuple[Any, Any]:
        with torch.inference_mode():
            logits = network(torch.from_numpy(batch).to(device))["logits"]
            values, classes = logits.topk(TOP)
            return values.half().cpu().numpy(), classes.cpu().numpy()

    return label


def onnxruntime_loop(model: str, device: str, rows: int) -> Label:
    """Return a function that labels a batch with an exported file in onnxruntime.

    As in a teacher, TF32 is off.
    """
    import onnxruntime

    provider: Any = "CPUExecutionProvider"
    if device == "cuda":
        onnxruntime.preload_dlls()
        exact = {"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
        provider = ("CUDAExecutionProvider", exact)
    session = onnxruntime.InferenceSession(model, providers=[provider])
    inputs = {"image": networks.picture(rows)}

    def label() -> tuple[Any, Any]:
        [logits] = session.run(None, inputs)
        classes = np.argpartition(logits, -TOP, axis=-1)[:, -TOP:]
        return np.take_along_axis(logits, classes, axis=-1).astype(np.float16), classes

    return label


def export(factory: str, folder: Path) -> str:
    """Export the factory's module to ONNX, for any number of rows; return the file's path."""
    import torch

    network, [image] = _create(factory)
    file = folder / "network.onnx"
    names = {"input_names": ["image"], "output_names": ["logits"]}
    rows = {"image": {0: "rows"}, "logits": {0: "rows"}}
    with warnings.catch_warnings():
        # The exporter without dynamo warns, but needs no further package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(), (image,), str(file), dynamo=False, dynamic_axes=rows, **names
        )
    return str(file)


def _create(factory: str) -> tuple[Any, list[Any]]:
    module, _, function = factory.partition(":")
    created: tuple[Any, list[Any]] = getattr(importlib.import_module(module), function)()
    return created
