"""The tutorial's teacher: 4000 known points vote for the arm of a new one."""

from __future__ import annotations

from typing import Any

import numpy as np


def spirals(count: int, seed: int) -> tuple[Any, Any]:
    """Return noisy points [count, 2] on three arms of a spiral, and the arm of each."""
    random = np.random.default_rng(seed)
    arm = random.integers(0, 3, count)
    radius = random.uniform(0.1, 1.0, count)
    angle = 2 * np.pi * (radius + arm / 3) + random.normal(0, 0.6, count)
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points.astype(np.float32), arm


SEEN, ARM = spirals(4000, seed=1)
VOTES = np.eye(3, dtype=np.float32)[ARM]


def label(batch: dict[str, Any]) -> dict[str, Any]:
    """Return logits [N, 3] for points [N, 2]: known points nearby vote."""
    distance = ((batch["point"][:, None] - SEEN) ** 2).sum(axis=2)
    votes = np.exp(-distance / 0.02) @ VOTES + 1e-6
    return {"logits": np.log(votes / votes.sum(axis=1, keepdims=True))}
