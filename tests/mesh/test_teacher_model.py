"""The demo's teacher: exported as it was trained, kept, and trained again when it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edl.errors import UsageError
from edl.mesh.demo.digits import Digits, load_digits
from edl.mesh.demo.predictor import Predictor
from edl.mesh.demo.settings import DemoSettings
from edl.mesh.demo.teacher_model import (
    MANIFEST,
    TeacherModel,
    cache_key,
    obtain_teacher,
    read_cached,
)

SETTINGS = DemoSettings(teacher_epochs=1)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def obtain(digits: Digits, cache: Path, *, fresh: bool = False) -> tuple[TeacherModel, int]:
    """The teacher, and how many steps it was trained for."""
    steps: list[int] = []
    model = obtain_teacher(
        digits, SETTINGS, cache, fresh=fresh, on_step=lambda done, total: steps.append(done)
    )
    return model, len(steps)


def test_trained_once_then_found_then_trained_when_asked(digits: Digits, cache: Path) -> None:
    made, trained = obtain(digits, cache)
    assert (made.cached, trained > 0) == (False, True)
    found, trained = obtain(digits, cache)
    assert found == replace(made, cached=True)
    assert trained == 0
    again, trained = obtain(digits, cache, fresh=True)
    assert (again, trained > 0) == (made, True)
    assert [entry.name for entry in cache.iterdir()] == [cache_key(digits, SETTINGS)]


def test_the_exported_model_labels_and_counts_its_time(digits: Digits, cache: Path) -> None:
    model, _ = obtain(digits, cache)
    predictor = Predictor(model.path, micro_batch=32)
    logits = predictor(digits.test_image)
    assert (logits.shape, str(logits.dtype)) == ((len(digits.test_image), 10), "float32")
    right = float(np.mean(logits.argmax(axis=1) == digits.test_label))
    assert right == pytest.approx(model.accuracy, abs=0.002)
    assert predictor.cpu_s > 0


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest", "another"])
def test_a_damaged_model_is_not_used(digits: Digits, cache: Path, damage: str) -> None:
    place = obtain(digits, cache)[0].path.parent
    weights = place / "teacher.pdiparams"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "gone":
        weights.unlink()
    elif damage == "manifest":
        (place / MANIFEST).write_text("{")
    else:
        (place / MANIFEST).write_text(json.dumps(["not", "ours"]))
    assert read_cached(place) is None
    model, trained = obtain(digits, cache)
    assert (model.cached, trained > 0) == (False, True)
    assert read_cached(place) is not None


def test_another_training_is_another_place(digits: Digits) -> None:
    keys = {
        cache_key(digits, SETTINGS),
        cache_key(digits, replace(SETTINGS, teacher_epochs=2)),
        cache_key(digits, replace(SETTINGS, noise=1.0)),
    }
    assert len(keys) == 3
    assert cache_key(digits, replace(SETTINGS, seeds=9)) in keys


def test_a_model_that_cannot_be_written_is_one_clear_error(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot be written to .*File exists"):
        obtain(digits, tmp_path / "file")
