"""The speed of a teacher relative to a bare loop of its framework on the same device."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ...distill_reader import DistilReader
from ...runtime.errors import ModelError
from ...teacher.backends.onnx import has_cuda
from ..children import Child
from ..paced import SERVICE, Repeated
from ..paced.teachers import start_teachers
from ..report import BenchmarkReport, Estimate, Goal, Row, interleaved
from . import networks

log = logging.getLogger(__name__)

_OURS: Final = networks.__name__
#: `--device` of `edl bench` -> `--devices` of a teacher.
DEVICES: Final = {"cpu": "cpu", "cuda": "gpu:0"}
#: Logits of each row that are sent.
TOP: Final = 20
#: Least speed of a teacher relative to the bare loop.
DELIVERED: Final = 0.97
#: Approximate length of a turn of the bare loop, in seconds.
_TURN_S: Final = 1.5
_QUICK_TURN_S: Final = 0.3
_BATCHES_AT_LEAST: Final = 4
_TRIAL: Final = 4


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
        Network("ResNet50 float32", f"{_OURS}:resnet50", 64),
        Network("ResNet50 bfloat16", f"{_OURS}:resnet50_bf16", 64),
        Network("ViT-B/16 float32", f"{_OURS}:vit_b", 64),
        Network("ViT-B/16 bfloat16", f"{_OURS}:vit_b_bf16", 64),
        Network("ResNet50 float32, ONNX", f"{_OURS}:resnet50", 64, "onnx"),
        Network("ViT-B/16 float32, ONNX", f"{_OURS}:vit_b", 64, "onnx"),
    ),
    "cpu": (
        Network("ResNet50 float32", f"{_OURS}:resnet50", 8),
        Network("ViT-B/16 float32", f"{_OURS}:vit_b", 8),
        Network("ResNet50 float32, ONNX", f"{_OURS}:resnet50", 8, "onnx"),
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
        part, bare_per_s = _by_turns(network, device, _QUICK_TURN_S if quick else _TURN_S)
        rows.append(
            {
                "network": network.name,
                "device": device,
                "rows": network.rows,
                "bare_samples_per_s": bare_per_s,
                "delivered": part.value,
                "low": part.low,
                "high": part.high,
            }
        )
        name = f"{network.name} on {device}: part of the bare loop"
        goals.append(Goal.judge(name, part, ">=", DELIVERED))
    return BenchmarkReport(rows, goals)


def _can_run_onnx(device: str) -> bool:
    try:
        return has_cuda() or device == "cpu"
    except ModelError:  # onnxruntime is not installed
        return False


def _by_turns(network: Network, device: str, turn_s: float) -> tuple[Estimate, float]:
    """Return the teacher's part of the bare loop's speed, and the latter in samples per second."""
    options = ("--devices", DEVICES[device], "--micro-batch", str(network.rows))
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="edl-bench-"))
        module = "edl.benchmarks.teachers.bare_loop"
        what = (network.framework, network.factory, device, network.rows, TOP, Path(folder))
        bare = Child(stack, "the bare loop", module, *what)
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
        source.count = max(_BATCHES_AT_LEAST, round(turn_s * _TRIAL / alone()))
        turns = interleaved(alone, in_teacher)
    bare_s = Estimate.of([alone_s for alone_s, _ in turns]).value
    part = Estimate.of([alone_s / taught_s for alone_s, taught_s in turns])
    return part, network.rows * source.count / bare_s
