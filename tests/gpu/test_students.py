"""Students with PyTorch on the device: beside their teacher, in mixed precision, as ranks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edl.benchmarks.paced import Repeated
from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.torch import TorchLoader
from edl.student import DistillLoss, smoothed_cross_entropy
from edl.student.checkpoint import SnapshotOwner, open_checkpoint
from edl.student.losses.terms import logits_mse, top_k_divergence
from edl.student.messages import Ready
from edl.tests.gpu import networks
from edl.tests.gpu.conftest import ROWS, Start, TestDevice, needs_gpu
from edl.tests.gpu.test_teachers import Rows
from edl.tests.student.rank.world import JOB, World, on_disk, settings

STEPS = 60


soft_loss = DistillLoss(alpha=0, beta=1, soft_label_is="logits")


def of_top_k(logits: Any, teacher: Any) -> Any:
    values, indices = teacher.topk(3)
    rest = teacher.scatter(-1, indices, -math.inf).logsumexp(-1)
    return top_k_divergence(logits, values, indices, rest)


TERMS = {
    "hard and soft": lambda z, y, t: DistillLoss(0.3, 0.7, 4.0)(z, y, t),
    "top-k": lambda z, y, t: of_top_k(z, t),
    "squared differences": lambda z, y, t: logits_mse(z, t),
    "smoothing": lambda z, y, t: smoothed_cross_entropy(z, y, 0.1),
}


@pytest.mark.parametrize("term", TERMS)
def test_losses_are_those_of_the_cpu(device: TestDevice, term: str) -> None:
    """Values and gradients of float32."""
    torch.manual_seed(0)
    student, teacher = 3 * torch.randn(2, ROWS, networks.CLASSES)
    label = torch.arange(ROWS) % networks.CLASSES

    def graded(where: str) -> tuple[Any, Any]:
        logits = student.to(where).requires_grad_()
        value = TERMS[term](logits, label.to(where), teacher.to(where))
        value.backward()
        return value.detach().cpu(), logits.grad.cpu()

    torch.testing.assert_close(graded(device.torch), graded("cpu"), rtol=1e-5, atol=1e-6)


def test_student_and_teacher_on_one_device_in_mixed_precision(
    device: TestDevice, teachers: Start
) -> None:
    torch.manual_seed(0)
    student = torch.nn.Linear(networks.FEATURES, networks.CLASSES).to(device.torch)
    optimizer = torch.optim.Adam(student.parameters(), 0.05)
    losses: list[float] = []
    ids: list[int] = []
    [(address, _)] = teachers()
    with DistilReader(Rows(STEPS), service="bench", teachers=[address], feeds=[0]) as reader:
        for x, own, soft in TorchLoader(reader, pin_memory=device.on_gpu):
            ids += own.tolist()
            with torch.autocast(device.torch, torch.bfloat16):
                logits = student(x.to(device.torch, non_blocking=True))
                assert logits.dtype == torch.bfloat16
                loss = soft_loss(logits.float(), None, soft.to(device.torch, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert ids == list(range(STEPS * ROWS))
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_t_s_of_a_loop_that_runs_ahead(device: TestDevice, teachers: Start) -> None:
    """The loop looks at a result every tenth step only; t_s is that of the device all the same."""
    needs_gpu(device)
    network = networks.heavy(device.torch).to(device.torch)
    x = torch.zeros(ROWS, len(network.matrix), device=device.torch)
    steps: list[tuple[Any, Any]] = []  # events at their begin and end, for which nobody waits
    batch = np.zeros((ROWS, networks.FEATURES), np.float32)
    [(address, _)] = teachers()
    source = Repeated(batch, count=STEPS + 1)
    with DistilReader(source, service="bench", teachers=[address]) as reader:
        for number, _ in enumerate(reader):
            if number == STEPS:
                break
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            steps.append((began, ended))
            began.record()
            loss = network(x).square().mean()
            loss.backward()
            ended.record()
            if number % 10 == 9:
                loss.item()
        t_s_s = reader.stats.t_s_s
    torch.cuda.synchronize()
    mean_s = np.mean([began.elapsed_time(ended) / 1000 for began, ended in steps[20:]])
    assert 0.6 < t_s_s * ROWS / mean_s < 1.6


def test_ranks_divide_the_rows(device: TestDevice, teachers: Start, tmp_path: Path) -> None:
    """As many ranks as cards, by NCCL; without a card two by gloo."""
    ranks = torch.cuda.device_count() if device.on_gpu else 2
    [(address, _)] = teachers()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "-m", "edl.tests.gpu.rank"]
    command += [device.torch, address, str(tmp_path)]
    subprocess.run(command, check=True, timeout=100)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert sorted(row for rank in told for row in rank["ids"]) == list(range(24 * ROWS))
    assert len({rank["weights"] for rank in told}) == 1


def test_a_job_file_trains_on_the_device_and_goes_on(device: TestDevice, tmp_path: Path) -> None:
    """With a rank for each card; float16 needs a scaler, whose state is in the checkpoint."""
    ranks = torch.cuda.device_count() if device.on_gpu else 2
    job = {
        "job_file": str(JOB.with_stem("torch_job")),
        "amp": "float16" if device.on_gpu else "bfloat16",
    }
    with SnapshotOwner() as owner:
        with World(settings(**job, epochs=4), ranks, owner=owner) as world:
            assert set(world.ended().values()) == {0}
        saved = on_disk(owner, tmp_path / "left").location
        left = open_checkpoint(saved)
        assert ("scaler" in left.state["training"]) == device.on_gpu
        assert ("cuda" in left.state["training"]["random"]["torch"]) == device.on_gpu
        more = settings(**job, epochs=8)
        with World(more, ranks, owner=owner, restore=saved, generation=2) as world:
            assert set(world.ended().values()) == {0}
            assert world.said(Ready)[0].step == left.step > 0
        done = open_checkpoint(on_disk(owner, tmp_path / "done").location)
    assert done.step == 2 * left.step
    assert done.state["metrics"]["accuracy"] > max(0.5, left.state["metrics"]["accuracy"] - 0.1)
