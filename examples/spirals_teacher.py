"""A teacher in numpy, fitted when it starts: it predicts the spiral arm on which a point lies.

edl-teacher serve --model spirals_teacher:network --service spirals --redis redis://...
(with this folder in PYTHONPATH). To start the whole mesh: edl up examples/mesh.yaml
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from spirals import ARMS, Array, spirals  # type: ignore[import-not-found]  # in this folder

FEATURES = 500


def network() -> tuple[Callable[[Mapping[str, Array]], dict[str, Array]], list[str]]:
    """Fit ridge regression on random Fourier features of 6000 points: a second on one core.

    Returns:
        A function from {"point": float32 [N, 2]} to {"logits": float32 [N, ARMS]}, and the
        description of its input.
    """
    rng = np.random.default_rng(0)
    waves = rng.normal(0, 5.0, (2, FEATURES))
    phase = rng.uniform(0, 2 * np.pi, FEATURES)

    def features(point: Array) -> Array:
        return np.asarray(np.cos(point @ waves + phase))

    point, arm = spirals(6000, rng)
    x, y = features(point), np.eye(ARMS)[arm]
    weights = np.linalg.solve(x.T @ x + 0.1 * np.eye(FEATURES), x.T @ y)

    def logits(inputs: Mapping[str, Array]) -> dict[str, Array]:
        score = features(inputs["point"]) @ weights
        return {"logits": (8.0 * score).astype(np.float32)}

    return logits, ["point:FP32:-1,2"]
