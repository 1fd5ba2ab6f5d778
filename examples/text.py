r"""A job for `edl student train`: a bag of characters learns whether reviews are positive.

export REVIEWS=DIR                        # contains pos.txt and neg.txt, one review per line
python examples/text.py text-teacher      # trains a convolutional teacher and exports it
edl coordinator serve
edl-teacher serve --model text-teacher --service reviews --redis redis://127.0.0.1:6379 \
    --no-self-test                        # the test's random inputs do not resemble texts
edl student train examples/text.py --redis redis://127.0.0.1:6379 --epochs 10
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

LENGTH = 96  # characters of a review that are used
CODES = 4096  # codes of characters; 0 is padding
TRAINING_SAMPLES = 2000  # reviews for training the student
HELD_OUT = 10  # every tenth review measures the accuracy


class Bag(nn.Layer):  # type: ignore[misc]  # paddle has no types
    """The student: characters int64 [N, LENGTH] -> logits [N, 2]; their order is ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CODES, 32, padding_idx=0)
        self.out = nn.Sequential(nn.Softsign(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, text: Any) -> Any:
        mask = (text != 0).astype("float32").unsqueeze(-1)
        return self.out((self.embedding(text) * mask).sum(1) / mask.sum(1).clip(min=1.0))


class Convolutions(nn.Layer):  # type: ignore[misc]
    """The teacher: characters int64 [N, LENGTH] -> logits [N, 2], by 1-D convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CODES, 64, padding_idx=0)
        self.convolutions = nn.LayerList([nn.Conv1D(64, 64, width) for width in (1, 2, 3)])
        self.max_pool = nn.AdaptiveMaxPool1D(1)
        self.out = nn.Sequential(nn.Dropout(0.5), nn.Linear(3 * 64, 2))

    def forward(self, text: Any) -> Any:
        embedded = self.embedding(text).transpose([0, 2, 1])
        convolved = [nn.functional.relu(layer(embedded)) for layer in self.convolutions]
        pooled = [self.max_pool(features) for features in convolved]
        return self.out(paddle.concat(pooled, 1).squeeze(-1))


class Reviews(paddle.io.Dataset):  # type: ignore[misc]
    """Pairs of a review's characters, int64 [LENGTH], and its class: 1 if positive, else 0."""

    def __init__(self, split: str, count: int | None) -> None:
        super().__init__()
        folder = Path(os.environ.get("REVIEWS", "reviews"))
        good, bad = (
            set((folder / name).read_text("utf-8").splitlines()) for name in ("pos.txt", "neg.txt")
        )
        texts = [(text, 1) for text in good - bad] + [(text, 0) for text in bad - good]
        texts.sort()  # the same order in every process
        texts = [texts[at] for at in np.random.default_rng(0).permutation(len(texts))]
        held_out = texts[::HELD_OUT]
        training = [text for at, text in enumerate(texts) if at % HELD_OUT]
        self.texts = (training if split == "train" else held_out)[:count]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        text, sentiment = self.texts[index]
        codes = np.zeros(LENGTH, np.int64)
        for at, character in enumerate(text[:LENGTH]):
            codes[at] = 1 + ord(character) % (CODES - 1)
        return codes, np.int64(sentiment)

    def __len__(self) -> int:
        return len(self.texts)


def model() -> Any:
    return Bag()


def loss(outputs: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters: Any) -> Any:
    return paddle.optimizer.Adam(5e-3, parameters=parameters)


def feed(split: str) -> Any:
    if split == "train":
        return paddle.io.DataLoader(Reviews(split, TRAINING_SAMPLES), batch_size=64, shuffle=True)
    return paddle.io.DataLoader(Reviews(split, None), batch_size=256)


def metrics() -> dict[str, Any]:
    return {
        "accuracy": lambda outputs, labels: (outputs.argmax(-1) == labels).astype("float32").mean()
    }


def distill() -> Distill:
    return Distill(service="reviews", alpha=0.3, beta=0.7, temperature=2.0, feeds=[0])


def main(folder: Path, epochs: int = 3) -> None:
    """Train the teacher on all reviews that are not held out, and export it to `folder`."""
    paddle.seed(7)
    teacher = Convolutions()
    adam = paddle.optimizer.Adam(2e-3, parameters=teacher.parameters())
    loader = paddle.io.DataLoader(Reviews("train", None), batch_size=64, shuffle=True)
    for text, sentiment in (batch for _ in range(epochs) for batch in loader):
        loss(teacher(text), sentiment).backward()
        adam.step()
        adam.clear_grad()
    teacher.eval()
    spec = paddle.static.InputSpec([None, LENGTH], "int64", name="text")
    paddle.jit.save(teacher, str(folder / "model"), input_spec=[spec])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "text-teacher"))
