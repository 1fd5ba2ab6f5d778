"""A student of one layer, trained by ranks of torchrun with soft labels of an ONNX classifier.

edl coordinator serve
python examples/digits_onnx.py digits.onnx
edl-teacher serve --model digits.onnx --service digits --redis redis://127.0.0.1:6379
torchrun --nproc-per-node 2 examples/digits_ranks.py redis://127.0.0.1:6379
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.torch import TorchLoader

T = 4.0


class Digits(Dataset):  # type: ignore[misc]  # mypy skips torch
    """Dicts of pixels, float32 [64], and a label."""

    def __init__(self) -> None:
        digits = load_digits()
        self.pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.label = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixels": self.pixels[index], "label": self.label[index]}


def main(coordinator: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    student = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(student.parameters(), 1e-2)
    reader = DistilReader(
        DataLoader(Digits(), batch_size=64, shuffle=True),
        service="digits",
        coordinator=coordinator,
        job="torch",
        world_size=dist.get_world_size(),  # the environment gives a reader only its rank
        uneven="drop",
        temperature=T,  # teachers send softmax(log p / T)
    )
    with reader:
        for _ in range(10):
            correct = rows = 0
            for batch in TorchLoader(reader):
                logits = student(batch["pixels"])
                soft = F.kl_div((logits / T).log_softmax(-1), batch["prob"], reduction="batchmean")
                loss = 0.3 * F.cross_entropy(logits, batch["label"]) + 0.7 * T * T * soft
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                correct += int((logits.argmax(-1) == batch["label"]).sum())
                rows += len(logits)
        counts = torch.tensor([correct, rows])
        dist.all_reduce(counts)
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks: accuracy {counts[0] / counts[1]:.2f}")
    dist.destroy_process_group()


main(sys.argv[1])
