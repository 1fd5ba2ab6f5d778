"""Students with PyTorch on the device: beside their teacher, in mixed precision, as ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edl.benchmarks.pacing import Repeated
from edl.benchmarks.pacing.teachers import start_teachers
from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.torch import TorchLoader
from edl.tests.gpu import networks
from edl.tests.gpu.conftest import TestDevice, needs_gpu
from edl.tests.gpu.test_teachers import ROWS, Rows

STEPS = 60


def soft_loss(logits: Any, soft: Any) -> Any:
    functional = torch.nn.functional
    return functional.kl_div(logits.log_softmax(-1), soft.softmax(-1), reduction="batchmean")


def test_student_and_teacher_on_one_device_in_mixed_precision(device: TestDevice) -> None:
    options = ("--devices", device.teacher, "--micro-batch", str(ROWS))
    torch.manual_seed(0)
    student = torch.nn.Linear(networks.FEATURES, networks.CLASSES).to(device.torch)
    optimizer = torch.optim.Adam(student.parameters(), 0.05)
    losses: list[float] = []
    ids: list[int] = []
    with ExitStack() as ending:
        [(address, _)] = start_teachers(ending, [options], f"{networks.NAME}:linear")
        reader = DistilReader(Rows(STEPS), service="bench", teachers=[address], feeds=[0])
        loader = TorchLoader(ending.enter_context(reader), pin_memory=device.on_gpu)
        for x, own, soft in loader:
            ids += own.tolist()
            with torch.autocast(device.torch, torch.bfloat16):
                logits = student(x.to(device.torch, non_blocking=True))
                assert logits.dtype == torch.bfloat16
                loss = soft_loss(logits.float(), soft.to(device.torch, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert ids == list(range(STEPS * ROWS))
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_t_s_of_a_loop_that_runs_ahead(device: TestDevice) -> None:
    """The loop looks at a result every tenth step only; t_s is that of the device all the same."""
    needs_gpu(device)
    network = networks.heavy(device.torch).to(device.torch)
    x = torch.zeros(ROWS, len(network.matrix), device=device.torch)
    clock = StepClock()
    options = ("--devices", device.teacher, "--micro-batch", str(ROWS))
    batch = np.zeros((ROWS, networks.FEATURES), np.float32)
    with ExitStack() as ending:
        [(address, _)] = start_teachers(ending, [options], f"{networks.NAME}:linear")
        source = Repeated(batch, count=STEPS + 1)
        reader = ending.enter_context(DistilReader(source, service="bench", teachers=[address]))
        for number, _ in enumerate(reader):
            if number == STEPS:
                break
            clock.begin()
            loss = network(x).square().mean()
            loss.backward()
            clock.end()
            if number % 10 == 9:
                loss.item()
        t_s_s = reader.stats.t_s_s
    assert 0.6 < t_s_s * ROWS / clock.mean_s(last=STEPS - 20) < 1.6


class StepClock:
    """Takes the time of each step by CUDA's events, for which the loop does not wait."""

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def begin(self) -> None:
        self._mark()

    def end(self) -> None:
        self._mark()

    def mean_s(self, last: int) -> float:
        """Seconds of a step, the mean of so many."""
        torch.cuda.synchronize()
        pairs = list(zip(self._marks[::2], self._marks[1::2], strict=True))[-last:]
        return float(np.mean([began.elapsed_time(ended) / 1000 for began, ended in pairs]))

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)


def test_ranks_divide_the_rows(device: TestDevice, tmp_path: Path) -> None:
    """As many ranks as cards, by NCCL; without a card two by gloo."""
    ranks = torch.cuda.device_count() if device.on_gpu else 2
    options = ("--devices", device.teacher, "--micro-batch", str(ROWS))
    with ExitStack() as ending:
        [(address, _)] = start_teachers(ending, [options], f"{networks.NAME}:linear")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), "-m", "edl.tests.gpu.rank"]
        command += [device.torch, address, str(tmp_path)]
        subprocess.run(command, check=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert sorted(row for rank in told for row in rank["ids"]) == list(range(24 * ROWS))
    assert len({rank["weights"] for rank in told}) == 1
