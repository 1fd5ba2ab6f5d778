"""A program to copy: a student in numpy, for ten classes. Any loop needs the lines marked `new`.

edl coordinator serve
edl-teacher serve --model my_teacher:make --service mine --redis redis://127.0.0.1:6379
python examples/numpy_student.py redis://127.0.0.1:6379

docs/how-to/models.md has the teacher, whose input is uint8 images [N, 8, 8].
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from edl.distill_reader import Batched, DistilReader  # new


def softmax(logits: Any) -> Any:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def main(coordinator: str) -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 17, size=(512, 8, 8), dtype=np.uint8)
    loader = Batched([(image, index) for index, image in enumerate(images)], 32, shuffle=True)
    weight = np.zeros((64, 10), np.float32)
    with DistilReader(loader, service="mine", coordinator=coordinator) as reader:  # new
        for _ in range(10):
            agreed = 0
            for image, _label, soft_label in reader:  # new: soft_label
                pixels = image.reshape(len(image), 64).astype("float32") / 16
                logits = pixels @ weight
                gradient = pixels.T @ (softmax(logits) - softmax(soft_label)) / len(image)
                weight -= 0.5 * gradient
                agreed += int((logits.argmax(1) == soft_label.argmax(1)).sum())
    print(f"agrees with its teacher on {agreed / len(images):.2f} of the samples")


main(sys.argv[1])
