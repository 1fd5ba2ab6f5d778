"""The demo's digits, teacher model and students: trained with Paddle."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.mesh.demo import models, modes
from edl.mesh.demo.digits import (
    CLASSES,
    SOURCE_SIZE,
    TEST_DIGITS,
    BatchSource,
    DigitDataset,
    augment,
    choose_labelled,
    load_digits,
)
from edl.mesh.demo.models import Predictor
from edl.mesh.demo.settings import DemoSettings
from edl.runtime.errors import UsageError
from edl.student import DistillLoss

pytestmark = pytest.mark.system
SETTINGS = DemoSettings(teacher_epochs=1)


@pytest.fixture(scope="module")
def digits() -> DigitDataset:
    """A part of the data, because a training with all of it takes half a minute of CPU time."""
    every = load_digits(SETTINGS.size)
    return DigitDataset(
        every.train_image[:320],
        every.train_label[:320],
        every.test_image[:64],
        every.test_label[:64],
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def obtain(
    digits: DigitDataset, cache: Path, *, fresh: bool = False
) -> tuple[models.TeacherModel, int]:
    """The teacher, and how many steps it was trained for."""
    steps: list[int] = []
    model = models.obtain_teacher(
        digits, SETTINGS, cache, fresh=fresh, on_step=lambda done, total: steps.append(done)
    )
    return model, len(steps)


def test_a_teacher_is_trained_once_then_found_then_trained_when_asked(
    digits: DigitDataset, cache: Path
) -> None:
    made, trained = obtain(digits, cache)
    assert (made.cached, trained > 0) == (False, True)
    found, trained = obtain(digits, cache)
    assert found == replace(made, cached=True)
    assert trained == 0
    again, trained = obtain(digits, cache, fresh=True)
    assert (again, trained > 0) == (made, True)
    key = models.cache_key(digits, SETTINGS)
    assert [entry.name for entry in cache.iterdir()] == [key]
    others: list[dict[str, Any]] = [{"students": 9}, {"teacher_epochs": 2}, {"noise": 1.0}]
    keys = [models.cache_key(digits, replace(SETTINGS, **other)) for other in others]
    assert [other == key for other in keys] == [True, False, False]


def test_the_exported_model_labels_and_counts_its_time(digits: DigitDataset, cache: Path) -> None:
    model, _ = obtain(digits, cache)
    predictor = Predictor(model.path, micro_batch=32)
    logits = predictor(digits.test_image)
    assert (logits.shape, str(logits.dtype)) == ((len(digits.test_image), 10), "float32")
    right = float(np.mean(logits.argmax(axis=1) == digits.test_label))
    assert right == pytest.approx(model.accuracy, abs=0.002)
    assert predictor.cpu_s > 0


def test_a_damaged_model_is_not_used(digits: DigitDataset, cache: Path, tmp_path: Path) -> None:
    place = obtain(digits, cache)[0].path.parent
    whole = (place / "teacher.pdiparams").read_bytes()
    manifest = models.MANIFEST
    damaged = ("teacher.pdiparams", whole[:-1]), (manifest, b"{"), (manifest, b'["not", "ours"]')
    for name, content in damaged:
        copy = shutil.copytree(place, tmp_path / "copy", dirs_exist_ok=True)
        (copy / name).write_bytes(content)
        assert models.read_cached(copy) is None
    shutil.copytree(place, copy, dirs_exist_ok=True)
    (copy / "teacher.pdiparams").unlink()
    assert models.read_cached(copy) is None
    (place / manifest).write_text("{")
    model, trained = obtain(digits, cache)
    assert (model.cached, trained > 0) == (False, True)


def test_a_model_that_cannot_be_written_is_one_clear_error(
    digits: DigitDataset, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")

    def on_step(done: int, total: int) -> None:
        raise AssertionError("trained for nothing")

    with pytest.raises(UsageError, match=r"cannot be written to .*File exists"):
        models.obtain_teacher(digits, SETTINGS, tmp_path / "file", fresh=False, on_step=on_step)


SMALL = DemoSettings(students=2, steps=3, batch_size=16, labelled=40)


def brightness(image: Any) -> Any:
    """A teacher of no great insight."""
    mean = image.reshape(len(image), -1).mean(axis=1, keepdims=True, dtype=np.float32)
    return mean / 255 * np.arange(10, dtype=np.float32)


def test_n_training_is_distillation_without_its_soft_half(digits: DigitDataset) -> None:
    steps: list[int] = []
    training = modes.n_training(digits, SMALL)
    training.run(2, steps.append)
    assert steps == [1, 2, 3, 4, 5, 6]
    plain = training.result
    labelled = modes.label_in_process(BatchSource(digits, SMALL), brightness)
    hard = DistillLoss(1, 0)
    in_two_runs = modes.StudentTraining("edl_dist", labelled, hard, digits, SMALL)
    in_two_runs.run(1, lambda number: None)
    assert in_two_runs.result.stream.batches == 3
    in_two_runs.run(1, lambda number: None)
    same = in_two_runs.result
    assert same.accuracy == plain.accuracy
    assert len(plain.accuracy) == 2
    assert plain.samples_per_s == pytest.approx(96 / plain.seconds)
    assert plain.student_core_s > 0


def test_held_out_digits_are_not_trained_on_and_labelled_ones_are_spread() -> None:
    digits = load_digits(SETTINGS.size)
    assert digits.test_image.shape == (TEST_DIGITS, 1, 32, 32)
    trained = {image.tobytes() for image in digits.train_image}
    assert not trained & {image.tobytes() for image in digits.test_image}
    assert digits.sha256 == load_digits(SETTINGS.size).sha256
    chosen = choose_labelled(digits.train_label, 104, seed=3)
    per_class = np.bincount(digits.train_label[chosen], minlength=CLASSES)
    assert len(set(chosen.tolist())) == 104
    assert (per_class.min(), per_class.max()) == (10, 11)
    assert not np.array_equal(chosen, choose_labelled(digits.train_label, 104, seed=4))
    plain = replace(SMALL, steps=20, batch_size=64, shift_pixels=0, noise=0.0)
    batches = list(BatchSource(digits, plain))
    for own in (batches[:20], batches[20:]):  # of each student
        assert len({image.tobytes() for batch in own for image in batch[0]}) == 40


def test_a_shift_moves_the_image_and_fills_with_black() -> None:
    image = np.zeros((200, 1, SOURCE_SIZE, SOURCE_SIZE), np.uint8)
    image[:, :, 3, 5] = 200
    moved = augment(np.random.default_rng(0), image, shift_pixels=1, noise=0)
    places = {tuple(np.argwhere(one[0])[0].tolist()) for one in moved}
    assert places == {(row, column) for row in (2, 3, 4) for column in (4, 5, 6)}
    assert (moved.reshape(200, -1).sum(axis=1) == 200).all()
