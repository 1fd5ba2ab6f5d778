"""A student in a loop of Accelerate with soft labels of an ONNX classifier.

edl coordinator serve
python examples/digits_onnx.py digits.onnx
edl-teacher serve --model digits.onnx --service digits --redis redis://127.0.0.1:6379
accelerate launch examples/digits_accelerate.py redis://127.0.0.1:6379
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from edl.distill_reader import DistilReader
from edl.integrations.accelerate import AcceleratedLoader
from edl.student import DistillLoss

EPOCHS = 10


def main(coordinator: str) -> None:
    accelerator = Accelerator()
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    batches = DataLoader(
        TensorDataset(pixels, torch.tensor(digits.target)), batch_size=64, shuffle=True
    )
    loader = AcceleratedLoader(
        accelerator,
        lambda **ranks: DistilReader(
            batches, service="digits", coordinator=coordinator, uneven="drop", **ranks
        ),
    )
    student = torch.nn.Linear(64, 10)
    optimizer = torch.optim.Adam(student.parameters(), 1e-2)
    student, optimizer = accelerator.prepare(student, optimizer)
    distill_loss = DistillLoss(alpha=0.3, beta=0.7, temperature=4.0)
    with loader.reader as reader:
        while reader.state_dict()["epoch"] < EPOCHS:
            correct = rows = 0
            for image, label, soft_label in loader:
                logits = student(image)
                accelerator.backward(distill_loss(logits, label, soft_label))
                optimizer.step()
                optimizer.zero_grad()
                correct += int((logits.argmax(-1) == label).sum())
                rows += len(label)
            accelerator.save_state("saved")  # includes the position of the reader
    accelerator.print(f"Accelerate: accuracy {correct / rows:.2f}")


main(sys.argv[1])
