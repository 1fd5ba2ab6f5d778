"""A job for `edl student train`: a small Wide&Deep learns to predict clicks from a larger one.

The log has Criteo's format: a line for each impression, with 40 tab-separated fields: 1 or 0 for a
click, 13 counts, 26 categories of eight hexadecimal digits; fields may be empty.

export CLICKS=DIR                          # the log: files train.txt and eval.txt
python examples/ctr.py generate 20000      # writes a small synthetic log there
python examples/ctr.py teacher ctr-teacher
edl coordinator serve
edl-teacher serve --model ctr-teacher --service ctr --redis redis://127.0.0.1:6379
edl student train examples/ctr.py --redis redis://127.0.0.1:6379 --epochs 2
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from edl.student import Distill

COUNTS, CATEGORIES = 13, 26
BUCKETS = 1 << 16  # rows of an embedding; there are too many categories, so they are hashed


class WideDeep(nn.Layer):  # type: ignore[misc]  # paddle has no types
    """Wide&Deep: counts float32 [N, 13] and categories int64 [N, 26] -> logits [N, 1]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.wide = nn.Embedding(BUCKETS, 1, sparse=True)
        self.deep = nn.Embedding(BUCKETS, width, sparse=True)
        self.layers = nn.Sequential(
            nn.Linear(COUNTS + CATEGORIES * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, counts: Any, categories: Any) -> Any:
        deep = self.layers(paddle.concat([counts, self.deep(categories).flatten(1)], -1))
        return deep + self.wide(categories).sum(1)


class Clicks(paddle.io.Dataset):  # type: ignore[misc]
    """Tuples of counts, categories and click of a line; only offsets of lines are in memory."""

    def __init__(self, split: str) -> None:
        super().__init__()
        self.path = Path(os.environ.get("CLICKS", "clicks")) / f"{split}.txt"
        with self.path.open("rb") as log:
            ends = np.cumsum([len(line) for line in log], dtype=np.int64)
        self.starts = np.concatenate([[0], ends])

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        start, stop = self.starts[index : index + 2]
        log = os.open(self.path, os.O_RDONLY)
        try:
            line = os.pread(log, int(stop - start), int(start)).decode("ascii")
        finally:
            os.close(log)
        clicked, *fields = line.rstrip("\n").split("\t")
        counts = np.array([max(float(field or 0), 0.0) for field in fields[:COUNTS]], np.float32)
        hashed = [
            zlib.crc32(f"{column}:{category}".encode()) % BUCKETS
            for column, category in enumerate(fields[COUNTS:])
        ]
        return np.log1p(counts), np.array(hashed, np.int64), np.array([clicked == "1"], np.float32)

    def __len__(self) -> int:
        return len(self.starts) - 1


def model() -> Any:
    return WideDeep(width=4, hidden=32)


def loss(outputs: Any, labels: Any) -> Any:
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels)


def optimizer(parameters: Any) -> Any:
    return paddle.optimizer.Adam(1e-3, parameters=parameters, lazy_mode=True)


def feed(split: str) -> Any:
    return paddle.io.DataLoader(Clicks(split), batch_size=256, shuffle=split == "train")


def metrics() -> dict[str, Any]:
    return {"log loss": loss}


def distill() -> Distill:
    return Distill(service="ctr", alpha=0.5, beta=0.5, loss="mse", feeds=[0, 1])


def generate(folder: Path, lines: int, seed: int = 0) -> None:
    """Write logs in which clicks depend on some categories, one count, and chance."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    effect = rng.normal(0, 1, (CATEGORIES, 50))
    for split, impressions in (("train", lines), ("eval", lines // 5)):
        rows = []
        for _ in range(impressions):
            counts = rng.poisson(3, COUNTS)
            chosen = rng.integers(0, 50, CATEGORIES)
            score = effect[np.arange(5), chosen[:5]].sum() + 0.3 * (counts[0] - 3) - 1
            clicked = int(rng.random() < 1 / (1 + np.exp(-score)))
            names = [f"{zlib.crc32(bytes(pair)):08x}" for pair in enumerate(chosen)]
            empty = rng.random(CATEGORIES) < 0.02
            fields = ["" if is_empty else name for name, is_empty in zip(names, empty, strict=True)]
            rows.append("\t".join([str(clicked), *map(str, counts), *fields]))
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")


def train_teacher(folder: Path) -> None:
    """Train a larger network on the same log and export it."""
    paddle.seed(7)
    teacher = WideDeep(width=16, hidden=256)
    adam = paddle.optimizer.Adam(1e-3, parameters=teacher.parameters(), lazy_mode=True)
    for counts, categories, clicked in feed("train"):
        loss(teacher(counts, categories), clicked).backward()
        adam.step()
        adam.clear_grad()
    teacher.eval()
    specs = [
        paddle.static.InputSpec([None, COUNTS], "float32", name="counts"),
        paddle.static.InputSpec([None, CATEGORIES], "int64", name="categories"),
    ]
    paddle.jit.save(teacher, str(folder / "model"), input_spec=specs)


if __name__ == "__main__":
    if sys.argv[1] == "generate":
        generate(Path(os.environ.get("CLICKS", "clicks")), int(sys.argv[2]))
    else:
        train_teacher(Path(sys.argv[2]))
