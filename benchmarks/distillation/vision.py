"""Tasks with images: scikit-learn's digits (8x8), and MNIST; a CNN teaches a smaller CNN."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ...mesh.demo.digits import CLASSES, DigitDataset, augmentation_of, load_digits
from ...mesh.demo.models import convolution, scale_to_unit
from ...mesh.demo.settings import DemoSettings
from ...runtime.errors import UsageError
from .task import BASE, Task, find

if TYPE_CHECKING:
    from paddle.nn import Layer

#: The published files: training images and labels, then held-out images and labels.
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_UNSIGNED_BYTE = 8


def digits(seeds: int, *, quick: bool) -> Task:
    """Return the task of the demo's digits in their own size, 8x8: 1200 for training, 597 held out.

    Args:
        seeds: students for each way.
        quick: fewer steps, epochs and teachers.
    """
    settings = replace(
        BASE,
        students=seeds,
        steps=400,
        batch_size=128,
        shift_pixels=1,
        learning_rate=5e-3,
        teacher_epochs=20,
    )
    if quick:
        settings = replace(
            settings,
            steps=240,
            batch_size=64,
            teacher_epochs=4,
            teachers=2,
            upper_batches=24,
            lower_batches=12,
        )
    data = load_digits()
    return Task(
        "digits",
        data,
        settings,
        augmentation_of(settings),
        _digits_teacher,
        partial(_cnn, *_DIGITS_STUDENT),
        _about("scikit-learn's digits", data, settings),
        torch_student=partial(_torch_cnn, *_DIGITS_STUDENT),
    )


def mnist(folder: Path, seeds: int, *, quick: bool) -> Task | None:
    """Return the task of MNIST from IDX files in `folder`, plain or gzipped; None without them."""
    paths = find(folder, IDX_FILES) or find(folder, [f"{name}.gz" for name in IDX_FILES])
    if paths is None:
        return None
    train, train_label, test, test_label = (read_idx(path) for path in paths)
    data = DigitDataset(
        train[:, np.newaxis],
        train_label.astype(np.int64),
        test[:, np.newaxis],
        test_label.astype(np.int64),
    )
    settings = replace(
        BASE,
        students=seeds,
        steps=30 if quick else 200,
        batch_size=64,
        shift_pixels=2,
        learning_rate=3e-3,
        teacher_epochs=1,
    )
    return Task(
        "mnist",
        data,
        settings,
        augmentation_of(settings),
        partial(_cnn, *_MNIST_TEACHER),
        partial(_cnn, *_MNIST_STUDENT),
        _about("MNIST", data, settings),
        torch_student=partial(_torch_cnn, *_MNIST_STUDENT),
    )


def download_mnist() -> Path:
    """Let Paddle download MNIST, unless it has done so before; return the folder.

    Raises:
        UsageError: the download failed.
    """
    from ...mesh.demo.models import load_paddle

    paddle = load_paddle()
    try:
        for mode in ("train", "test"):
            paddle.vision.datasets.MNIST(mode=mode, download=True)
    except Exception as error:  # Paddle's errors have no common base class
        raise UsageError(
            f"Paddle cannot download MNIST ({error}): fetch the four IDX files yourself, and name"
            " their folder by --set data=FOLDER"
        ) from error
    return Path(paddle.dataset.common.DATA_HOME) / "mnist"


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read the array of an IDX file of unsigned bytes, gzipped if its name ends in .gz.

    Raises:
        UsageError: the file has another format, or is cut short.
    """
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"{path} cannot be unpacked: {error}") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UNSIGNED_BYTE:
        raise UsageError(f"{path} is not an IDX file of unsigned bytes")
    header_bytes = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, header_bytes, 4)]
    nbytes = len(raw) - header_bytes
    if nbytes != np.prod(shape):
        raise UsageError(f"{path} has {nbytes} bytes of data instead of {np.prod(shape)}")
    return np.frombuffer(raw, np.uint8, offset=header_bytes).reshape(shape)


def _about(name: str, data: DigitDataset, settings: DemoSettings) -> str:
    return (
        f"{name}: the teacher learns all {len(data.train_label):,} labels, each student"
        f" {settings.labelled}; {len(data.test_label):,} held out"
    )


def _digits_teacher() -> Layer:
    """Return three convolutions and a hidden layer of 128: uint8 [N, 1, 8, 8] -> logits [N, 10]."""
    from paddle import nn

    return nn.Sequential(
        scale_to_unit(),
        *convolution(1, 32),
        *convolution(32, 32),
        nn.MaxPool2D(2),
        *convolution(32, 64),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


#: Arguments of `_cnn`.
_DIGITS_STUDENT: Final = (8, 16, 64, 2)
_MNIST_TEACHER: Final = (32, 64, 128, 7)
_MNIST_STUDENT: Final = (8, 16, 32, 7)


def _cnn(first: int, second: int, hidden: int, size: int) -> Any:
    """Return two convolutions and a hidden layer: uint8 images -> logits [N, 10].

    Args:
        first: channels of the first convolution.
        second: channels of the second convolution.
        hidden: width of the hidden layer.
        size: rows and columns of an image after both convolutions.
    """
    from paddle import nn

    return nn.Sequential(
        scale_to_unit(),
        *convolution(1, first),
        nn.MaxPool2D(2),
        *convolution(first, second),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Linear(second * size * size, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )


def _torch_cnn(first: int, second: int, hidden: int, size: int) -> Any:
    """Return the network of `_cnn` in PyTorch."""
    import torch
    from torch import nn

    class ScaleToUnit(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
        def forward(self, image: Any) -> Any:
            return image.to(torch.float32) / 255.0

    return nn.Sequential(
        ScaleToUnit(),
        nn.Conv2d(1, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * size * size, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )
