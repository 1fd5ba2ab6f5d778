"""Speed of a teacher relative to its device, and its response times at full load.

It uses real processes, and measures:

- with an emulated device: the share of its rate that a reader gets if it takes each batch at once;
- with a ResNet in Paddle: its speed in a teacher relative to the bare model, alternately on one
  core;
- while the ResNet runs: how late the teacher's I/O process answers `ServerLive` and sends
  heartbeats, beyond the lateness with which an idle process on the same core wakes up;
- with `--device`, instead of these: the speed of networks of PyTorch and ONNX in a teacher relative
  to a bare loop on that device.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from ..coordinator.embedded import start_embedded
from ..coordinator.registry.schema import lease_set
from ..distill_reader import DistilReader
from ..mesh.cores import on_cores, pin_process
from ..proto.channel import Channel
from ..teacher.backends import run_in_micro_batches
from ..teacher.backends.selection import open_backend
from ..teacher.backends.tensor_specs import example_batch
from .children import Child, two_cores
from .paced import ROWS, SERVICE, Repeated, batch
from .paced.teachers import paced as pace
from .paced.teachers import start_teachers
from .report import MIN_ROUNDS, BenchmarkReport, Estimate, Goal, Row, interleaved, quantile
from .teachers import on_device
from .teachers.latency_probe import take_latencies
from .teachers.models import export_resnet

log = logging.getLogger(__name__)

TEACHER: Final = "teacher"
TTL_S: Final = 2.0
#: Seconds of a batch on the emulated device -> least share of its rate that is delivered.
PACES: Final = {0.02: 0.98, 0.1: 0.995}
#: Least speed of a teacher relative to the bare model.
DELIVERED: Final = 0.95
#: Greatest p99 lateness of the I/O process beyond that of an idle process, in seconds.
LATER_S: Final = 0.02
_WINDOW_S: Final = 1.5
#: Batches before the first window.
_SETTLING: Final = 10
#: Warm-up runs of the bare model, which choose kernels and fill caches.
_WARM_UP: Final = 3


def run(quick: bool, device: str | None = None) -> BenchmarkReport:
    """Measure emulated devices and a ResNet, or networks of PyTorch and ONNX on `device`.

    Args:
        quick: shorter windows, and ResNet18 instead of ResNet50.
        device: "cpu" or "cuda": only compare teachers with bare loops on this device; None:
            measure emulated devices and the ResNet.
    """
    if device is not None:
        return on_device.compare(device, quick)
    rows: list[Row] = []
    goals: list[Goal] = []
    for batch_s, least in PACES.items():
        log.info("an emulated device at %g ms a batch", batch_s * 1000)
        part = paced(batch_s, _WINDOW_S / 3 if quick else _WINDOW_S)
        name = f"emulated, {batch_s * 1000:g} ms a batch"
        rows.append(_row(name, part, ROWS / batch_s))
        goals.append(Goal.judge(f"{name}: part of its rate", part, ">=", least))
    layers = 18 if quick else 50
    log.info("ResNet%d, alternately bare and in a teacher", layers)
    result = resnet(layers, batches=2 if quick else 4)
    name = f"Paddle ResNet{layers}, {ROWS} a batch"
    rows.append(_row(name, result.part, result.bare_per_s))
    goals.append(Goal.judge(f"{name}: part of the bare model", result.part, ">=", DELIVERED))
    for event, late_s in (("ServerLive", result.live_s), ("beats", result.beat_s)):
        later_s = quantile(late_s, 0.99) - quantile(result.control_s, 0.99)
        goals.append(Goal.judge(f"{event}: p99 beyond an idle process, s", later_s, "<=", LATER_S))
    return BenchmarkReport(rows, goals)


def paced(batch_s: float, window_s: float) -> Estimate:
    """Return the share of an emulated device's rate that a reader gets.

    Args:
        batch_s: seconds of a batch on the device.
        window_s: length of each window in seconds.
    """
    per_window = max(math.ceil(window_s / batch_s), 5)
    source = Repeated(batch(), count=_SETTLING + MIN_ROUNDS * per_window)
    with ExitStack() as stack:
        [(address, _)] = start_teachers(stack, [pace(batch_s)])
        reader = stack.enter_context(DistilReader(source, service=SERVICE, teachers=[address]))
        arrivals_s = [time.perf_counter() for _ in reader]
    marks = arrivals_s[_SETTLING - 1 :: per_window]
    windows = [later - earlier for earlier, later in pairwise(marks)]
    return Estimate.of([per_window * batch_s / seconds for seconds in windows])


@dataclass(frozen=True, slots=True)
class BareAndServed:
    """Measurements of a model alone and in a teacher, interleaved.

    Attributes:
        part: speed in the teacher relative to the bare model.
        bare_per_s: samples per second of the bare model.
        live_s: seconds of each `ServerLive` call while the teacher worked.
        beat_s: lateness of each heartbeat, in seconds.
        control_s: lateness in seconds of each wake-up of an idle process on the same core.
    """

    part: Estimate
    bare_per_s: float
    live_s: Sequence[float]
    beat_s: Sequence[float]
    control_s: Sequence[float]


def resnet(layers: int, batches: int) -> BareAndServed:
    """Measure a ResNet with random weights, bare and in a teacher.

    Args:
        layers: 18 or 50.
        batches: batches of each turn.
    """
    io_core, model_core = two_cores()
    source = Repeated(np.zeros((ROWS, 3, 224, 224), np.float32), count=batches)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edl-bench-")))
        with on_cores([model_core]):
            bare = Child(stack, "the bare model", run_bare_model, str(folder), layers)
        model = bare.receive()["model"]
        server, url = start_embedded()
        stack.callback(server.stop)
        member = ("--redis", url, "--ttl", str(TTL_S), "--teacher-id", TEACHER)
        options = (*member, "--devices", f"cpu:{model_core}")
        [(address, process)] = start_teachers(stack, [options], model)
        pin_process([io_core], process.pid)
        leases = lease_set("teachers", SERVICE).deadlines
        with on_cores([io_core]):
            probe = Child(
                stack, "the latency probe", take_latencies, address, url, leases, TEACHER, TTL_S
            )
        probe.receive()
        reader = stack.enter_context(DistilReader(source, service=SERVICE, teachers=[address]))
        for _ in reader:  # starts the engine, which inherits the cores of this thread
            pass
        latencies: dict[str, list[float]] = {"live": [], "beat": [], "control": []}

        def alone() -> float:
            return float(bare.ask("run", batches=batches)["seconds"])

        def in_teacher() -> float:
            probe.ask("count")  # drop latencies that were measured before
            began = time.perf_counter()
            for _ in reader:
                pass
            took_s = time.perf_counter() - began
            for name, seconds in probe.ask("count")["latencies"].items():
                latencies[name] += seconds
            return took_s

        bare_s, served_s = interleaved(alone, in_teacher)
    return BareAndServed(
        part=Estimate.of_ratio(bare_s, served_s),
        bare_per_s=ROWS * batches / statistics.median(bare_s),
        live_s=latencies["live"],
        beat_s=latencies["beat"],
        control_s=latencies["control"],
    )


def run_bare_model(channel: Channel, folder: str, layers: int) -> None:
    """Run a ResNet in a teacher's backend, but without a server, on request; see `time_runs`.

    Args:
        channel: its first message to the benchmark has the path of the model.
        folder: folder to which the model is exported.
        layers: 18 or 50.
    """
    model = export_resnet(Path(folder), layers)
    backend = open_backend(model, threads=1)
    batch = example_batch(backend.spec.inputs, ROWS)
    for _ in range(_WARM_UP):
        run_in_micro_batches(backend.run, batch, ROWS)
    channel.send("ready", model=model)
    on_device.time_runs(channel, lambda: run_in_micro_batches(backend.run, batch, ROWS))


def _row(name: str, part: Estimate, nominal_per_s: float) -> Row:
    return {
        "device": name,
        "samples_per_s": nominal_per_s,
        **part.columns("delivered"),
    }
