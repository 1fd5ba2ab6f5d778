"""The demo's teacher: trained once on all training digits, exported, kept in a cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError, UsageError
from ...student import DistillLoss, Trainer, accuracy
from .digits import Digits, augment
from .networks import load_paddle, teacher_network
from .predictor import Predictor
from .settings import DemoSettings

NAME = "teacher"  # of the exported files
MANIFEST = "manifest.json"
#: Changes whenever the network or its training does, so that an older cache is not taken for it.
RECIPE = 2
SEED = 7
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
CHECKED_DIGITS = 64

#: Called after each step with steps done and steps in all.
OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TeacherModel:
    """An exported teacher.

    Attributes:
        path: prefix of its files, as `edl-teacher serve --model` takes it.
        accuracy: on the held-out digits.
        cached: whether it was found, not trained.
    """

    path: Path
    accuracy: float
    cached: bool


def obtain_teacher(
    digits: Digits, settings: DemoSettings, cache: Path, *, fresh: bool, on_step: OnStep
) -> TeacherModel:
    """The teacher from `cache`, or a new one that is kept there.

    Args:
        digits: what it is trained on, with all labels.
        settings: how long, and with which augmentation.
        cache: folder for the exported models.
        fresh: train even if there is one.
        on_step: told of the progress of the training.

    Raises:
        UsageError: the model cannot be written.
        ModelError: what was written does not answer as what was trained.
    """
    place = cache / cache_key(digits, settings)
    if not fresh and (found := read_cached(place)) is not None:
        return found
    network = _train(digits, settings, on_step)
    reached = accuracy(network, digits.test_image, digits.test_label)
    try:
        _export(network, reached, digits, settings, place)
    except (OSError, RuntimeError) as error:  # RuntimeError: what Paddle makes of a full disk
        raise UsageError(
            f"the teacher's model cannot be written to {place}: {_first_line(error)}."
            " Make room, or set XDG_CACHE_HOME to another folder"
        ) from error
    return TeacherModel(place / NAME, reached, cached=False)


def cache_key(digits: Digits, settings: DemoSettings) -> str:
    """Name of the folder for what this training gives: data, recipe and framework."""
    facts = {
        "recipe": RECIPE,
        "digits": digits.sha256,
        "epochs": settings.teacher_epochs,
        "augmentation": [settings.shift_pixels, settings.noise],
        "paddle": load_paddle().__version__,
        "network": [list(parameter.shape) for parameter in teacher_network().parameters()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def read_cached(place: Path) -> TeacherModel | None:
    """The model in `place`; None where there is none, or one whose files are not what they were."""
    try:
        manifest = json.loads((place / MANIFEST).read_text())
        for name, digest in manifest["files"].items():
            if _sha256(place / name) != digest:
                return None
        return TeacherModel(place / NAME, float(manifest["accuracy"]), cached=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _train(digits: Digits, settings: DemoSettings, on_step: OnStep) -> Any:
    paddle = load_paddle()
    paddle.seed(SEED)
    network = teacher_network()
    steps = settings.teacher_epochs * len(digits.train_label) // BATCH_SIZE
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(LEARNING_RATE, T_max=steps)
    optimizer = paddle.optimizer.Adam(schedule, parameters=network.parameters())
    rng = np.random.default_rng(SEED)

    def batches() -> Any:
        for _ in range(steps):
            rows = rng.integers(0, len(digits.train_label), BATCH_SIZE)
            image = augment(
                rng,
                digits.train_image[rows],
                shift_pixels=settings.shift_pixels,
                noise=settings.noise,
            )
            yield image, digits.train_label[rows]

    def after_step(report: Any) -> None:
        schedule.step()
        on_step(report.step, steps)

    with contextlib.closing(batches()) as stream:
        Trainer(network, DistillLoss(1, 0), optimizer, on_step=[after_step]).fit(
            stream, steps=steps
        )
    network.eval()
    return network


def _export(
    network: Any, reached: float, digits: Digits, settings: DemoSettings, place: Path
) -> None:
    """Write the model beside `place` and move it there whole: no reader sees half of one."""
    paddle = load_paddle()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as folder:
        new = Path(folder) / NAME
        shape = [None, *digits.test_image.shape[1:]]
        spec = [paddle.static.InputSpec(shape, "uint8", name="image")]
        static = paddle.jit.to_static(network, input_spec=spec, full_graph=True)
        paddle.jit.save(static, str(new))
        _check_export(new, network, digits, settings)
        files = {path.name: _sha256(path) for path in sorted(Path(folder).iterdir())}
        manifest = {"accuracy": reached, "files": files}
        (Path(folder) / MANIFEST).write_text(json.dumps(manifest, indent=2))
        if place.exists():
            shutil.rmtree(place)
        os.mkdir(place)
        for path in Path(folder).iterdir():
            # The manifest, which makes the rest valid, goes last.
            if path.name != MANIFEST:
                os.replace(path, place / path.name)
        os.replace(Path(folder) / MANIFEST, place / MANIFEST)


def _check_export(path: Path, network: Any, digits: Digits, settings: DemoSettings) -> None:
    """A file cut short by a full disk may be written without a complaint: ask it."""
    paddle = load_paddle()
    image = digits.test_image[:CHECKED_DIGITS]
    with paddle.no_grad():
        expected = network(paddle.to_tensor(image)).numpy()
    predictor = Predictor(path, micro_batch=settings.micro_batch, device=settings.device)
    given = predictor(image)
    if not np.allclose(given, expected, rtol=1e-3, atol=1e-3):
        raise ModelError(f"the model exported to {path} does not answer as the trained one does")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
