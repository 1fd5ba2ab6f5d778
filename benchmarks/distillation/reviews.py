"""Positive and negative reviews: a convolutional network teaches a bag of characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...mesh.demo.digits import SPLIT_SEED, DigitDataset
from ...runtime.errors import UsageError
from .task import BASE, Task, find

if TYPE_CHECKING:
    from paddle.nn import Layer

#: Positive and negative reviews, one per line.
FILES = ("pos.txt", "neg.txt")
HELD_OUT = 3000
#: Number of a review's characters that are used, and number of the most frequent characters that
#: get a code of their own.
LENGTH, KNOWN = 96, 3000
#: Codes for padding, and for rare or replaced characters.
END, OTHER = 0, 1
#: Share of the characters that the augmentation replaces by `OTHER`.
LEFT_OUT = 0.1

Texts = Sequence[tuple[str, int]]


def reviews(folder: Path, seeds: int, *, quick: bool) -> Task | None:
    """Return the task of the reviews in `folder`; None if it lacks the two files."""
    paths = find(folder, FILES)
    if paths is None:
        return None
    settings = replace(
        BASE,
        students=seeds,
        steps=40 if quick else 300,
        batch_size=64,
        labelled=2000,
        temperature=2.0,
        teacher_epochs=1 if quick else 3,
    )
    data = encode(_texts(*paths))
    about = (
        f"the teacher learns all {len(data.train_label):,} labels, each student"
        f" {settings.labelled:,}; {len(data.test_label):,} held out"
    )
    # The self-test sends only the integers 0 and 1 (END and OTHER), which do not resemble a review.
    serving = ("--no-self-test",)
    return Task("reviews", data, settings, leave_out, _teacher, _student, about, serving)


def encode(texts: Texts) -> DigitDataset:
    """Split `texts` and encode their characters by frequency: codes, int64 [N, LENGTH]."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(texts))
    held_out = min(HELD_OUT, len(texts) // 4)
    test, train = order[:held_out], order[held_out:]
    counts = Counter(character for index in train for character in texts[index][0])
    ranked = enumerate(counts.most_common(KNOWN))
    code_of = {character: OTHER + 1 + rank for rank, (character, _) in ranked}
    rows = np.full((len(texts), LENGTH), END, np.int64)
    for index, (text, _) in enumerate(texts):
        codes = [code_of.get(character, OTHER) for character in text[:LENGTH]]
        rows[index, : len(codes)] = codes
    label = np.array([sentiment for _, sentiment in texts], np.int64)
    image: Any = rows  # `DigitDataset` declares uint8, but nothing depends on that
    return DigitDataset(image[train], label[train], image[test], label[test])


def leave_out(rng: np.random.Generator, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of `rows` in which `OTHER` replaces random characters."""
    replaced = (rng.random(rows.shape) < LEFT_OUT) & (rows != END)
    return np.where(replaced, OTHER, rows)


def _texts(positive: Path, negative: Path) -> Texts:
    """Return each text once, so that no text is in both parts of a split.

    Texts that are both positive and negative are left out.

    Raises:
        UsageError: a file has no text, or another encoding than UTF-8.
    """
    by_sentiment = [_lines(path) for path in (negative, positive)]
    both = by_sentiment[0] & by_sentiment[1]
    return sorted(
        (text, sentiment) for sentiment in (0, 1) for text in by_sentiment[sentiment] - both
    )


def _lines(path: Path) -> set[str]:
    try:
        lines = {line.strip() for line in path.read_text("utf-8").splitlines()} - {""}
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8: {error}") from error
    if not lines:
        raise UsageError(f"{path} has no reviews: it needs one in each line")
    return lines


def _teacher() -> Layer:
    """Return convolutions over one to three characters: int64 [N, LENGTH] -> logits [N, 2]."""
    from paddle import concat, nn

    class Convolutions(nn.Layer):  # type: ignore[misc]  # paddle has no types
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(KNOWN + 2, 64, padding_idx=END)
            self.convolutions = nn.LayerList([nn.Conv1D(64, 64, width) for width in (1, 2, 3)])
            self.dropout = nn.Dropout(0.5)
            self.out = nn.Linear(3 * 64, 2)
            self.highest = nn.AdaptiveMaxPool1D(1)  # the gradient of max() would dominate the time

        def forward(self, text: Any) -> Any:
            vectors = self.embedding(text).transpose([0, 2, 1])
            outputs = [nn.functional.relu(convolve(vectors)) for convolve in self.convolutions]
            features = [self.highest(output) for output in outputs]
            return self.out(self.dropout(concat(features, 1).squeeze(-1)))

    return Convolutions()


def _student() -> Layer:
    """Return a small hidden layer on the mean of the character vectors; it ignores their order."""
    from paddle import nn

    class BagOfCharacters(nn.Layer):  # type: ignore[misc]  # paddle has no types
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(KNOWN + 2, 32, padding_idx=END)
            self.hidden = nn.Linear(32, 32)
            self.out = nn.Linear(32, 2)

        def forward(self, text: Any) -> Any:
            present = (text != END).astype("float32").unsqueeze(-1)
            mean = (self.embedding(text) * present).sum(1) / present.sum(1).clip(min=1.0)
            return self.out(nn.functional.relu(self.hidden(nn.functional.softsign(mean))))

    return BagOfCharacters()
