"""A job for `edl student train`: MNIST with 1000 labels, and a teacher that has learned all labels.

export MNIST=DIR                          # contains four IDX files: train-images-idx3-ubyte, ...
python examples/mnist.py mnist-teacher    # trains the teacher and exports it
edl coordinator serve
edl-teacher serve --model mnist-teacher --service mnist --redis redis://127.0.0.1:6379
edl student train examples/mnist.py --redis redis://127.0.0.1:6379 --epochs 30
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from edl.student import Distill

TRAINING_SAMPLES = 1000  # images for training the student


class Cnn(nn.Layer):  # type: ignore[misc]  # paddle has no types
    """A CNN: uint8 images [N, 1, 28, 28] -> logits [N, 10]."""

    def __init__(self, first: int, second: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2D(1, first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Conv2D(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Linear(second * 7 * 7, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        )

    def forward(self, image: Any) -> Any:
        return self.layers(image.astype("float32") / 255.0)


class Mnist(paddle.io.Dataset):  # type: ignore[misc]
    """Pairs of an image, uint8 [1, 28, 28], shifted by up to `shift` pixels, and its label."""

    def __init__(self, part: str, count: int | None, shift: int) -> None:
        super().__init__()
        folder = Path(os.environ.get("MNIST", "mnist"))
        images = (folder / f"{part}-images-idx3-ubyte").read_bytes()
        labels = (folder / f"{part}-labels-idx1-ubyte").read_bytes()
        self.image = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count]
        self.label = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)[:count]
        self.shift = shift

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        shift = np.random.randint(-self.shift, self.shift + 1, size=2)
        return np.roll(self.image[index], tuple(shift), axis=(1, 2)), self.label[index]

    def __len__(self) -> int:
        return len(self.image)


def model() -> Any:
    return Cnn(8, 16, 32)


def loss(outputs: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    return paddle.optimizer.Adam(3e-3, parameters=parameters)


def feed(split: str) -> Any:
    if split == "train":
        return paddle.io.DataLoader(
            Mnist("train", TRAINING_SAMPLES, 2), batch_size=64, shuffle=True
        )
    return paddle.io.DataLoader(Mnist("t10k", None, 0), batch_size=256)


def metrics() -> dict[str, Any]:
    return {
        "accuracy": lambda outputs, labels: (outputs.argmax(-1) == labels).astype("float32").mean()
    }


def distill() -> Distill:
    return Distill(service="mnist", alpha=0.3, beta=0.7, temperature=4.0, feeds=[0])


def main(folder: Path) -> None:
    """Train a larger network on all labels and export it."""
    paddle.seed(7)
    teacher = Cnn(32, 64, 128)
    adam = paddle.optimizer.Adam(1e-3, parameters=teacher.parameters())
    for image, label in paddle.io.DataLoader(Mnist("train", None, 2), batch_size=64, shuffle=True):
        loss(teacher(image), label).backward()
        adam.step()
        adam.clear_grad()
    teacher.eval()
    spec = paddle.static.InputSpec([None, 1, 28, 28], "uint8", name="image")
    paddle.jit.save(teacher, str(folder / "model"), input_spec=[spec])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "mnist-teacher"))
