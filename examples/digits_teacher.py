"""A teacher for trying the mesh: trains a small CNN on handwritten digits and exports it.

python examples/digits_teacher.py digits-teacher      # writes digits-teacher/model.*, in seconds
edl-teacher serve --model digits-teacher --service digits --redis redis://127.0.0.1:6379
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import paddle
from paddle import nn
from sklearn.datasets import load_digits

EPOCHS = 20
BATCH_SIZE = 64


class DigitsTeacher(nn.Layer):  # type: ignore[misc]  # paddle has no types
    """A CNN: uint8 images [N, 1, 8, 8] -> logits [N, 10]. Bytes keep requests small."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2D(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2D(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, image: Any) -> Any:
        return self.layers(image.astype("float32") / 16.0)


def main(folder: Path) -> None:
    paddle.seed(7)
    digits = load_digits()
    image = paddle.to_tensor(digits.images[:, None].astype("uint8"))
    label = paddle.to_tensor(digits.target.astype("int64"))
    teacher = DigitsTeacher()
    optimizer = paddle.optimizer.Adam(2e-3, parameters=teacher.parameters())
    for _ in range(EPOCHS):
        order = paddle.randperm(len(image))
        for at in range(0, len(image), BATCH_SIZE):
            rows = order[at : at + BATCH_SIZE]
            loss = nn.functional.cross_entropy(teacher(image[rows]), label[rows])
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
    teacher.eval()
    spec = paddle.static.InputSpec([None, 1, 8, 8], "uint8", name="image")
    paddle.jit.save(teacher, str(folder / "model"), input_spec=[spec])
    print(f"exported to {folder}, last loss {float(loss):.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "digits-teacher"))
