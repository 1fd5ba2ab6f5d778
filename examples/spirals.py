"""A student in numpy: it has few points with partly wrong labels, and learns from teachers.

python examples/spirals.py redis://127.0.0.1:6379       # with teachers of the service "spirals"
python examples/spirals.py                              # without teachers, for comparison

`edl up examples/mesh.yaml` runs it with its teachers.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np

from edl.distill_reader import DistilReader

ARMS = 3
HIDDEN = 64
TRAINING_SAMPLES = 150  # points of the student; a third of them get a random label
ROWS = 64
STEPS = 100  # in an epoch
Array = np.ndarray[Any, np.dtype[Any]]


def spirals(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw points, float32 [count, 2], and their arms, int64 [count]."""
    arm = rng.integers(0, ARMS, count)
    radius = np.sqrt(rng.uniform(0.05, 1.0, count))
    angle = 1.75 * 2 * np.pi * radius + arm * 2 * np.pi / ARMS + rng.normal(0, 0.15, count)
    point = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return point.astype(np.float32), arm


class Points:
    """Batches of points [ROWS, 2], each near a labelled point, and that point's label [ROWS]."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.point, self.label = spirals(TRAINING_SAMPLES, self.rng)
        wrong = self.rng.random(TRAINING_SAMPLES) < 1 / 3
        self.label = np.where(wrong, self.rng.integers(0, ARMS, TRAINING_SAMPLES), self.label)

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for _ in range(STEPS):
            row = self.rng.integers(0, TRAINING_SAMPLES, ROWS)
            noise = self.rng.normal(0, 0.1, (ROWS, 2)).astype(np.float32)
            yield self.point[row] + noise, self.label[row]


def softmax(logits: Array) -> Array:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exp / exp.sum(axis=1, keepdims=True))


class Student:
    """A network with two hidden layers, trained with Adam."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        sizes = [2, HIDDEN, HIDDEN, ARMS]
        self.weights = [
            rng.normal(0, np.sqrt(2 / (rows + 1)), (rows + 1, columns))
            for rows, columns in pairwise(sizes)
        ]
        self.mean = [np.zeros_like(weight) for weight in self.weights]
        self.square = [np.zeros_like(weight) for weight in self.weights]
        self.steps = 0

    def forward(self, point: Array) -> list[Array]:
        """Return the inputs of each layer, with a column of ones, and the logits."""
        values = [4.0 * point]
        for weight in self.weights:
            values[-1] = np.hstack([values[-1], np.ones((len(point), 1))])
            values.append(np.maximum(values[-1] @ weight, 0.0))
        values[-1] = values[-2] @ self.weights[-1]
        return values

    def step(self, point: Array, target: Array) -> float:
        """Train one step towards the probabilities `target` [N, ARMS]; return the loss."""
        *inputs, logits = self.forward(point)
        probability = softmax(logits)
        delta = (probability - target) / len(point)
        gradients = []
        for value, weight in zip(inputs[::-1], self.weights[::-1], strict=True):
            gradients.append(value.T @ delta)
            delta = (delta @ weight.T)[:, :-1] * (value[:, :-1] > 0)
        self.steps += 1
        for at, gradient in enumerate(gradients[::-1]):
            self.mean[at] += 0.1 * (gradient - self.mean[at])
            self.square[at] += 0.001 * (gradient**2 - self.square[at])
            mean = self.mean[at] / (1 - 0.9**self.steps)
            square = self.square[at] / (1 - 0.999**self.steps)
            self.weights[at] -= 3e-3 * mean / (np.sqrt(square) + 1e-8)
        return float(-(target * np.log(probability + 1e-9)).sum(axis=1).mean())

    def accuracy(self) -> float:
        """Return the share of new points that are classified correctly."""
        point, arm = spirals(5000, np.random.default_rng(3))
        return float((self.forward(point)[-1].argmax(axis=1) == arm).mean())


def batches(coordinator: str | None, stack: ExitStack) -> Iterable[Any]:
    """Return the student's batches, with the teachers' logits as last field if there is a mesh.

    `stack` closes the reader.
    """
    if coordinator is None:
        return Points()
    return stack.enter_context(DistilReader(Points(), service="spirals", coordinator=coordinator))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("coordinator", nargs="?")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # the reader closes
    student = Student()
    with ExitStack() as stack:
        loader = batches(options.coordinator, stack)
        for epoch in range(1, options.epochs + 1):
            for point, label, *soft in loader:
                hard = np.eye(ARMS)[label]
                target = 0.1 * hard + 0.9 * softmax(soft[0]) if soft else hard
                loss = student.step(point, target)
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {student.accuracy():.3f}", flush=True)
    print(f"accuracy on other points: {student.accuracy():.3f}")


if __name__ == "__main__":
    main()
