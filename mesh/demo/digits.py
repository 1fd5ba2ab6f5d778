"""Data set of handwritten digits, and the batches that all modes of the demo train on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .settings import DemoSettings

Images = npt.NDArray[np.uint8]  # [N, 1, size, size], 0 to 255
Labels = npt.NDArray[np.int64]  # [N]
#: Images, hard labels, number of the batch (one int64).
Batch = tuple[Images, Labels, npt.NDArray[np.int64]]
#: Returns the images of a batch, changed at random by the generator.
Augmentation = Callable[[np.random.Generator, Images], Images]

CLASSES = 10
SOURCE_SIZE = 8  # rows and columns of the images in scikit-learn
TEST_DIGITS = 597
SPLIT_SEED = 2021


@dataclass(frozen=True, slots=True)
class DigitDataset:
    """The data set, with a fixed split into training and test digits."""

    train_image: Images
    train_label: Labels
    test_image: Images
    test_label: Labels

    @property
    def sha256(self) -> str:
        """Hash of all images and labels."""
        digest = hashlib.sha256()
        for array in (self.train_image, self.train_label, self.test_image, self.test_label):
            digest.update(array.tobytes())
        return digest.hexdigest()


def load_digits(size: int = SOURCE_SIZE) -> DigitDataset:
    """Load the 1797 digits of scikit-learn: 1200 for training, 597 for the test.

    Args:
        size: rows and columns of the images, a multiple of 8; above 8 the images are interpolated
            bilinearly.
    """
    from sklearn import datasets

    bunch: Any = datasets.load_digits()
    image = (bunch.images * (255 / 16)).round()[:, np.newaxis]
    if size != SOURCE_SIZE:
        from scipy import ndimage  # a dependency of scikit-learn

        image = ndimage.zoom(
            image, (1, 1, size // SOURCE_SIZE, size // SOURCE_SIZE), order=1
        ).round()
    image = image.astype(np.uint8)
    label = bunch.target.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(image))
    test, train = order[:TEST_DIGITS], order[TEST_DIGITS:]
    return DigitDataset(image[train], label[train], image[test], label[test])


def choose_labelled(label: Labels, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Choose `count` rows by `seed`, balanced over the classes; return their indices."""
    classes = int(label.max()) + 1
    order = np.random.default_rng([seed, classes]).permutation(len(label))
    by_class = [order[label[order] == number] for number in range(classes)]
    share, remainder = divmod(count, classes)
    return np.concatenate([rows[: share + (n < remainder)] for n, rows in enumerate(by_class)])


def augment(rng: np.random.Generator, image: Images, *, shift_pixels: int, noise: float) -> Images:
    """Shift each image by up to `shift_pixels` in each direction, and add Gaussian noise.

    `noise` is the standard deviation of the noise; a pixel is 0 to 255.
    """
    count, span = len(image), 2 * shift_pixels + 1
    padded = np.pad(image[:, 0], ((0, 0), (shift_pixels,) * 2, (shift_pixels,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, image.shape[2:], axis=(1, 2))
    index = np.arange(count), rng.integers(0, span, count), rng.integers(0, span, count)
    shifted = windows[index].astype(np.float32)
    shifted += rng.normal(0, noise, shifted.shape).astype(np.float32)
    return np.clip(shifted, 0, 255).astype(np.uint8)[:, np.newaxis]


def augmentation_of(settings: DemoSettings) -> Augmentation:
    """Return the augmentation with the shifts and the noise of the settings."""
    return partial(augment, shift_pixels=settings.shift_pixels, noise=settings.noise)


class BatchSource:
    """All batches of a mode: all steps of the first student, then those of the next student.

    Each iteration yields the same batches, as a batch depends only on the seed and the step. So
    modes are comparable, and labels can be checked.

    Args:
        digits: the data set.
        settings: numbers of students, steps and labelled digits, and batch size.
        augmentation: changes the images; None: shifts and noise of the settings.
    """

    def __init__(
        self, digits: DigitDataset, settings: DemoSettings, augmentation: Augmentation | None = None
    ) -> None:
        self._digits = digits
        self._settings = settings
        self._augmentation = augmentation or augmentation_of(settings)

    def __len__(self) -> int:
        return self._settings.batches

    def __iter__(self) -> Iterator[Batch]:
        for seed in range(self._settings.students):
            chosen = choose_labelled(self._digits.train_label, self._settings.labelled, seed)
            for step in range(self._settings.steps):
                number = np.array([seed * self._settings.steps + step])
                yield (*self._draw(chosen, seed, step), number)

    def _draw(self, chosen: npt.NDArray[np.int64], seed: int, step: int) -> tuple[Images, Labels]:
        rng = np.random.default_rng([seed, step])
        rows = chosen[rng.integers(0, len(chosen), self._settings.batch_size)]
        image, label = self._digits.train_image[rows], self._digits.train_label[rows]
        return self._augmentation(rng, image), label
