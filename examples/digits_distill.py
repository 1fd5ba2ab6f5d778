"""A program to copy: a small student learns digits from a Paddle DataLoader and teachers.

edl coordinator serve
python examples/digits_teacher.py digits-teacher
edl-teacher serve --model digits-teacher --service digits --redis redis://127.0.0.1:6379
python examples/digits_distill.py redis://127.0.0.1:6379

Start and stop teachers while it runs, each with the `edl-teacher` line; `edl status --watch` shows
them.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import paddle
from paddle import nn
from sklearn.datasets import load_digits

from edl.distill_reader import DistilReader
from edl.student import DistillLoss, accuracy

EPOCHS = 40
TRAINING_SAMPLES = 200  # digits for training; all others measure the accuracy


class DigitsDataset(paddle.io.Dataset):  # type: ignore[misc]  # paddle has no types
    """Pairs of an image, uint8 [1, 8, 8], shifted at random, and its label."""

    def __init__(self, image: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.image, self.label = image, label

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        shift = tuple(np.random.randint(-1, 2, size=2))
        return np.roll(self.image[index], shift, axis=(1, 2)), self.label[index]

    def __len__(self) -> int:
        return len(self.image)


def main(coordinator: str) -> None:
    paddle.seed(1)
    digits = load_digits()
    image, label = digits.images[:, None].astype("uint8"), digits.target.astype("int64")
    train = DigitsDataset(image[:TRAINING_SAMPLES], label[:TRAINING_SAMPLES])
    data_loader = paddle.io.DataLoader(train, batch_size=50, shuffle=True, num_workers=2)

    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = paddle.optimizer.Adam(3e-3, parameters=student.parameters())
    distill_loss = DistillLoss(alpha=0.3, beta=0.7, temperature=4.0)

    with DistilReader(data_loader, service="digits", coordinator=coordinator, feeds=[0]) as loader:
        for epoch in range(EPOCHS):
            for image_batch, label_batch, soft_label in loader:
                logits = student(image_batch.astype("float32") / 16.0)
                loss = distill_loss(logits, label_batch, soft_label)
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
            print(f"epoch {epoch + 1}: loss {float(loss):.3f}  {loader.stats.line()}", flush=True)

    held_out = image[TRAINING_SAMPLES:].astype("float32") / 16.0
    reached = accuracy(student, held_out, label[TRAINING_SAMPLES:])
    print(f"accuracy on {len(held_out)} others: {reached:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6379")
