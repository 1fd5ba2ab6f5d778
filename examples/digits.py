"""A job for `edl student train`: a small CNN learns digits from few labels and from teachers.

edl coordinator serve
python examples/digits_teacher.py digits-teacher
edl-teacher serve --model digits-teacher --service digits --redis redis://127.0.0.1:6379
edl student train examples/digits.py --redis redis://127.0.0.1:6379 --epochs 40

Needs scikit-learn, which contains the digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import nn
from sklearn.datasets import load_digits

from edl.student import Distill

TRAINING_SAMPLES = 200  # digits for training; all others measure the accuracy


class Student(nn.Layer):  # type: ignore[misc]  # paddle has no types
    """A CNN: uint8 images [N, 1, 8, 8] -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2D(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Conv2D(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Linear(16 * 2 * 2, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, image: Any) -> Any:
        return self.layers(image.astype("float32") / 16.0)


class Digits(paddle.io.Dataset):  # type: ignore[misc]
    """Pairs of an image, uint8 [1, 8, 8], and its label; `shift`: images are shifted at random."""

    def __init__(self, image: Any, label: Any, shift: bool) -> None:
        super().__init__()
        self.image, self.label, self.shift = image, label, shift

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = self.image[index]
        if self.shift:
            image = np.roll(image, tuple(np.random.randint(-1, 2, size=2)), axis=(1, 2))
        return image, self.label[index]

    def __len__(self) -> int:
        return len(self.image)


def model() -> Any:
    return Student()


def loss(outputs: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    return paddle.optimizer.Adam(3e-3, parameters=parameters)


def feed(split: str) -> Any:
    digits = load_digits()
    image, label = digits.images[:, None].astype("uint8"), digits.target.astype("int64")
    if split == "train":
        train = Digits(image[:TRAINING_SAMPLES], label[:TRAINING_SAMPLES], shift=True)
        return paddle.io.DataLoader(train, batch_size=50, shuffle=True)
    return paddle.io.DataLoader(
        Digits(image[TRAINING_SAMPLES:], label[TRAINING_SAMPLES:], shift=False), batch_size=256
    )


def metrics() -> dict[str, Any]:
    return {
        "accuracy": lambda outputs, labels: (outputs.argmax(-1) == labels).astype("float32").mean()
    }


def distill() -> Distill:
    return Distill(service="digits", alpha=0.3, beta=0.7, temperature=4.0, feeds=[0])
