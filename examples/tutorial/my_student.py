"""The tutorial's student: it has 60 labelled points, and learns with or without teachers."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from my_teacher import spirals  # type: ignore[import-not-found]  # in this folder

from edl.distill_reader import Batched, DistilReader

MIXTURES = np.random.default_rng(0).normal(0, 4, (3, 64))


def features(points: Any) -> Any:
    return np.sin(np.pad(points, ((0, 0), (0, 1)), constant_values=1) @ MIXTURES)


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main(coordinator: str | None) -> None:
    np.random.seed(4)  # the order of the points if there is no reader, which has its own seed
    points, arms = spirals(60, seed=2)
    batches: Any = Batched([*zip(points, arms, strict=True)], 20, shuffle=True)
    if coordinator:
        batches = DistilReader(batches, service="spirals", coordinator=coordinator)
    weights = np.zeros((64, 3))
    for epoch in range(1, 151):
        for point, arm, *soft_label in batches:
            target = np.eye(3)[arm]  # the label of the data
            if soft_label:  # the teacher's label has more weight
                target = 0.2 * target + 0.8 * softmax(soft_label[0])
            sines = features(point)
            weights -= sines.T @ (softmax(sines @ weights) - target) / len(point)
            if coordinator:
                time.sleep(0.01)  # stands for the longer step of a larger student
        if coordinator and epoch % 30 == 0:
            print(f"epoch {epoch}: {batches.stats.line()}", flush=True)
    new_points, arms = spirals(2000, seed=3)
    correct = (features(new_points) @ weights).argmax(axis=1) == arms
    print(f"{100 * correct.mean():.1f} % of 2000 new points classified correctly")
    if coordinator:
        batches.close()


main(sys.argv[1] if len(sys.argv) > 1 else None)
