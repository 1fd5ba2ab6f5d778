"""The tutorial's student: it has 60 labelled points, and learns with or without teachers."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from my_teacher import spirals  # type: ignore[import-not-found]  # beside this

from edl.distill_reader import Batched, DistilReader

MIXTURES = np.random.default_rng(0).normal(0, 4, (3, 64))


def features(points: Any) -> Any:
    return np.sin(np.pad(points, ((0, 0), (0, 1)), constant_values=1) @ MIXTURES)


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main(coordinator: str | None) -> None:
    np.random.seed(4)  # the order of points, when it learns alone
    points, arms = spirals(60, seed=2)
    batches: Any = Batched([*zip(points, arms, strict=True)], 20, shuffle=True)
    if coordinator:
        batches = DistilReader(batches, service="spirals", coordinator=coordinator)
    weights = np.zeros((64, 3))
    for epoch in range(1, 151):
        for point, arm, *soft_label in batches:
            target = np.eye(3)[arm]  # what the data says
            if soft_label:  # what the teacher says counts more
                target = 0.2 * target + 0.8 * softmax(soft_label[0])
            found = features(point)
            weights -= found.T @ (softmax(found @ weights) - target) / len(point)
            if coordinator:
                time.sleep(0.01)  # the step of a larger student, which takes longer
        if coordinator and epoch % 30 == 0:
            print(f"epoch {epoch}: {batches.stats.line()}", flush=True)
    others, arms = spirals(2000, seed=3)
    right = (features(others) @ weights).argmax(axis=1) == arms
    print(f"{100 * right.mean():.1f} % of 2000 new points classified correctly")
    if coordinator:
        batches.close()


main(sys.argv[1] if len(sys.argv) > 1 else None)
