"""Exports a tiny network with Paddle, and what it makes of a few batches.

`python paddle_export.py FOLDER` writes the model as `inference.*` and, for tests to compare with,
`x.npy` and `y.npy`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
import paddle  # noqa: E402


class Net(paddle.nn.Layer):  # type: ignore[misc]
    """Two layers over 8 x 8 grey images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = paddle.nn.Linear(64, 32)
        self.second = paddle.nn.Linear(32, 10)

    def forward(self, image: Any) -> Any:
        """Logits [N, 10] of images [N, 1, 8, 8]."""
        hidden = paddle.nn.functional.relu(self.first(paddle.flatten(image, 1)))
        return self.second(hidden)


def main(folder: Path) -> None:
    paddle.seed(7)
    net = Net()
    net.eval()
    spec = [paddle.static.InputSpec([None, 1, 8, 8], "float32", "image")]
    paddle.jit.save(net, str(folder / "inference"), input_spec=spec)
    images = np.random.default_rng(7).standard_normal((64, 1, 8, 8), dtype=np.float32)
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", net(paddle.to_tensor(images)).numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
