"""The three ways of training: same batches, same students; only the labels differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl.mesh.demo import modes
from edl.mesh.demo.digits import BatchSource, Digits, load_digits
from edl.mesh.demo.settings import DemoSettings
from edl.student import DistillLoss

SETTINGS = DemoSettings(seeds=2, steps=4, batch_size=8, labelled=20)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits()


def brightness(image: Any) -> Any:
    """A teacher of no great insight."""
    mean = image.reshape(len(image), -1).mean(axis=1, keepdims=True, dtype=np.float32)
    return mean / 255 * np.arange(10, dtype=np.float32)


def train(digits: Digits, batches: Any, loss: DistillLoss) -> modes.ModeResult:
    return modes.train_students("edl_dist", batches, loss, digits, SETTINGS, lambda number: None)


def test_every_student_gets_its_own_stretch_of_the_stream(digits: Digits) -> None:
    numbers: list[int] = []
    result = modes.run_n_training(digits, SETTINGS, numbers.append)
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(result.accuracy) == 2
    assert (result.stream.batches, result.stream.samples) == (8, 64)
    assert result.samples_per_s == pytest.approx(64 / result.seconds)
    assert result.student_core_s > 0


def test_the_same_labels_make_the_same_students_wherever_they_come_from(digits: Digits) -> None:
    loss = modes.distill_loss(SETTINGS)
    source = BatchSource(digits, SETTINGS)
    here = train(digits, modes.label_in_process(source, brightness), loss)
    elsewhere = [(*batch, brightness(batch[0])) for batch in source]
    there = train(digits, elsewhere, loss)
    assert here.accuracy == there.accuracy
    assert here.stream == there.stream


def test_another_label_is_seen_in_the_hash(digits: Digits) -> None:
    source = BatchSource(digits, SETTINGS)
    loss = modes.distill_loss(SETTINGS)
    right = train(digits, modes.label_in_process(source, brightness), loss).stream
    swapped = [(*batch, brightness(batch[0][::-1])) for batch in source]
    assert train(digits, swapped, loss).stream.sha256 != right.sha256


def test_n_training_is_distillation_without_its_soft_half(digits: Digits) -> None:
    plain = modes.run_n_training(digits, SETTINGS, lambda number: None)
    labelled = modes.label_in_process(BatchSource(digits, SETTINGS), brightness)
    assert train(digits, labelled, DistillLoss(1, 0)).accuracy == plain.accuracy
