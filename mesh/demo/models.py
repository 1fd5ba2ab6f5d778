"""Networks of the demo's teacher and student, and the trained teacher: exported and cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...runtime.errors import ModelError, UsageError
from ...student import DistillLoss, Trainer, accuracy
from ...teacher.backends import run_in_micro_batches
from ...teacher.backends.paddle import import_paddle
from ...teacher.backends.selection import open_backend
from .digits import CLASSES, Augmentation, DigitDataset, Images, augmentation_of
from .settings import DemoSettings

if TYPE_CHECKING:
    from paddle.nn import Layer


def load_paddle() -> Any:
    """Import Paddle without its log, and restore Python's handler of SIGTERM."""
    paddle = import_paddle()  # Paddle resets the handler in the operating system, not in Python
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return paddle


def teacher_network() -> Layer:
    """Make a CNN of five convolutions: uint8 images [N, 1, 32, 32] to logits [N, 10]."""
    from paddle import nn

    return nn.Sequential(
        scale_to_unit(),
        *convolution(1, 16),
        *convolution(16, 16),
        nn.MaxPool2D(2),
        *convolution(16, 32),
        *convolution(32, 48),
        *convolution(48, 48),
        nn.MaxPool2D(4),
        nn.Flatten(),
        nn.Linear(48 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def student_network() -> Layer:
    """Make a CNN of two strided convolutions: uint8 images [N, 1, 32, 32] to logits [N, 10]."""
    from paddle import nn

    return nn.Sequential(
        scale_to_unit(),
        *convolution(1, 24, stride=2),
        *convolution(24, 48, stride=2),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Linear(48 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def convolution(inputs: int, outputs: int, stride: int = 1) -> tuple[Layer, Layer]:
    """Make a convolution of 3 x 3, and the activation after it."""
    from paddle import nn

    return nn.Conv2D(inputs, outputs, 3, stride=stride, padding=1), nn.ReLU()


def scale_to_unit() -> Layer:
    """Make a layer that converts uint8 to floats of 0 to 1, so that images can be sent as uint8."""
    from paddle import nn

    class ScaleToUnit(nn.Layer):  # type: ignore[misc]  # paddle has no types
        def forward(self, image: Any) -> Any:
            return image.astype("float32") / 255.0

    return ScaleToUnit()


class Predictor:
    """Labels batches in this process, with the functions and settings of a served teacher.

    The demo's mode "online", in which teacher and student share one process, uses it. Its labels
    are the reference for the labels of the mesh.

    Args:
        path: prefix of the files of the exported model.
        micro_batch: maximum number of images per run of the model.
        device: device of the model: "cpu" or "gpu:0".
        threads: CPU threads of a run.

    Attributes:
        cpu_s: core-seconds of its calls so far.
    """

    def __init__(
        self, path: Path, *, micro_batch: int, device: str = "cpu", threads: int = 1
    ) -> None:
        self._backend = open_backend(str(path), threads=threads, device=device)
        load_paddle()  # opening the backend removed the handler of SIGTERM again
        self._micro_batch = micro_batch
        self._input = self._backend.spec.inputs[0].name
        self._output = self._backend.spec.outputs[0].name
        self.cpu_s = 0.0

    def __call__(self, image: Images) -> npt.NDArray[np.float32]:
        """Compute the logits [N, 10] of uint8 images [N, 1, size, size]."""
        began = time.process_time()
        outputs: Any = run_in_micro_batches(
            self._backend.run, {self._input: image}, self._micro_batch
        )
        self.cpu_s += time.process_time() - began
        logits: npt.NDArray[np.float32] = outputs[self._output]
        return logits


NAME = "teacher"  # prefix of the exported files
MANIFEST = "manifest.json"
#: Version of network and training; increase it with each change, so that old caches are ignored.
RECIPE = 2
SEED = 7
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
CHECKED_DIGITS = 64

#: Called after each step with the number of completed steps and the number of all steps.
OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TeacherModel:
    """An exported teacher.

    Attributes:
        path: prefix of its files, for `edl-teacher serve --model`.
        accuracy: accuracy on the test digits.
        cached: whether the model is from the cache.
    """

    path: Path
    accuracy: float
    cached: bool


def obtain_teacher(
    digits: DigitDataset, settings: DemoSettings, cache: Path, *, fresh: bool, on_step: OnStep
) -> TeacherModel:
    """Return the teacher from `cache`, or train a teacher and store it there.

    Args:
        digits: data set; the teacher is trained on all labels of its training digits.
        settings: epochs and augmentation.
        cache: folder of exported models.
        fresh: train even if there is a cached model.
        on_step: called after each step of the training.

    Raises:
        UsageError: the model cannot be written.
        ModelError: the outputs of the exported model differ from those of the trained model.
    """
    folder = cache / cache_key(digits, settings)
    if not fresh and (cached := read_cached(folder)) is not None:
        return cached
    with _translated_write_errors(folder):  # before the training, which takes a minute
        cache.mkdir(parents=True, exist_ok=True)
    network = train_teacher(teacher_network, digits, settings, augmentation_of(settings), on_step)
    test_accuracy = accuracy(network, digits.test_image, digits.test_label)
    with _translated_write_errors(folder):
        _export(network, test_accuracy, digits, settings, folder)
    return TeacherModel(folder / NAME, test_accuracy, cached=False)


@contextlib.contextmanager
def _translated_write_errors(folder: Path) -> Iterator[None]:
    """Translate failed writes in the block into a UsageError that says what the user can do."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: Paddle on a full disk
        raise UsageError(
            f"the teacher's model cannot be written to {folder}: {_last_line(error)}."
            " Make room, or set XDG_CACHE_HOME to another folder"
        ) from error


def cache_key(digits: DigitDataset, settings: DemoSettings) -> str:
    """Return the name of the model's folder: a hash of data, training and framework."""
    facts = {
        "recipe": RECIPE,
        "digits": digits.sha256,
        "epochs": settings.teacher_epochs,
        "augmentation": [settings.shift_pixels, settings.noise],
        "paddle": load_paddle().__version__,
        "network": [list(parameter.shape) for parameter in teacher_network().parameters()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def read_cached(folder: Path) -> TeacherModel | None:
    """Return the model in `folder`; None: there is none, or its files have changed."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        for name, digest in manifest["files"].items():
            if _sha256(folder / name) != digest:
                return None
        return TeacherModel(folder / NAME, float(manifest["accuracy"]), cached=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def train_teacher(
    network: Callable[[], Any],
    digits: DigitDataset,
    settings: DemoSettings,
    augmentation: Augmentation,
    on_step: OnStep = lambda done, total: None,
) -> Any:
    """Train a teacher on all labels; return it in inference mode.

    Args:
        network: makes the network.
        digits: data set.
        settings: epochs.
        augmentation: changes the images.
        on_step: called after each step.
    """
    paddle = load_paddle()
    paddle.seed(SEED)
    teacher = network()
    steps = settings.teacher_epochs * len(digits.train_label) // BATCH_SIZE
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(LEARNING_RATE, T_max=steps)
    optimizer = paddle.optimizer.Adam(schedule, parameters=teacher.parameters())
    rng = np.random.default_rng(SEED)

    def batches() -> Generator[tuple[Any, Any]]:
        for _ in range(steps):
            rows = rng.integers(0, len(digits.train_label), BATCH_SIZE)
            yield augmentation(rng, digits.train_image[rows]), digits.train_label[rows]

    def after_step(report: Any) -> None:
        schedule.step()
        on_step(report.step, steps)

    trainer = Trainer(teacher, DistillLoss(1, 0), optimizer, on_step=[after_step])
    with contextlib.closing(batches()) as stream:
        trainer.fit(stream, steps=steps)
    teacher.eval()
    return teacher


def export(network: Any, image: npt.NDArray[Any], path: Path) -> None:
    """Export a network for inputs like `image`, in batches of any size.

    Args:
        network: a layer of Paddle.
        image: inputs, of which only shape and data type matter.
        path: prefix of the files.
    """
    paddle = load_paddle()
    spec = paddle.static.InputSpec([None, *image.shape[1:]], str(image.dtype), name="image")
    static = paddle.jit.to_static(network, input_spec=[spec], full_graph=True)
    paddle.jit.save(static, str(path))


def _export(
    network: Any, test_accuracy: float, digits: DigitDataset, settings: DemoSettings, folder: Path
) -> None:
    """Write the model to a temporary folder, which replaces `folder`."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as temporary:
        new_folder = Path(temporary) / folder.name
        new_folder.mkdir()
        prefix = new_folder / NAME
        export(network, digits.test_image, prefix)
        _check_export(prefix, network, digits, settings)
        files = {path.name: _sha256(path) for path in sorted(new_folder.iterdir())}
        manifest = {"accuracy": test_accuracy, "files": files}
        (new_folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
        if folder.exists():
            shutil.rmtree(folder)
        new_folder.rename(folder)


def _check_export(path: Path, network: Any, digits: DigitDataset, settings: DemoSettings) -> None:
    """Check the outputs: on a full disk Paddle may write a truncated file without an error."""
    paddle = load_paddle()
    image = digits.test_image[:CHECKED_DIGITS]
    with paddle.no_grad():
        expected = network(paddle.to_tensor(image)).numpy()
    predictor = Predictor(path, micro_batch=settings.micro_batch, device=settings.device)
    outputs = predictor(image)
    if not np.allclose(outputs, expected, rtol=1e-3, atol=1e-3):
        raise ModelError(
            f"the model exported to {path} computes other outputs than the trained model"
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
