"""The demo's data: the split, the labelled digits, the augmentation, the repeatable batches."""

from __future__ import annotations

import numpy as np
import pytest

from edl.mesh.demo.digits import (
    CLASSES,
    SIZE,
    TEST_DIGITS,
    BatchSource,
    Digits,
    augment,
    choose_labelled,
    load_digits,
)
from edl.mesh.demo.settings import DemoSettings

SETTINGS = DemoSettings(seeds=2, steps=3, batch_size=16, labelled=40)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits()


def test_held_out_digits_are_not_trained_on(digits: Digits) -> None:
    assert len(digits.test_image) == TEST_DIGITS
    assert len(digits.train_image) + TEST_DIGITS == 1797
    assert digits.train_image.shape[1:] == (1, SIZE, SIZE)
    assert digits.train_image.dtype == np.uint8
    assert digits.train_image.max() == 255
    trained = {image.tobytes() for image in digits.train_image}
    assert not trained & {image.tobytes() for image in digits.test_image}
    assert digits.sha256 == load_digits().sha256


@pytest.mark.parametrize(("count", "smallest", "largest"), [(100, 10, 10), (104, 10, 11)])
def test_labelled_digits_are_spread_over_the_classes(
    digits: Digits, count: int, smallest: int, largest: int
) -> None:
    chosen = choose_labelled(digits.train_label, count, seed=3)
    per_class = np.bincount(digits.train_label[chosen], minlength=CLASSES)
    assert len(set(chosen.tolist())) == count
    assert (per_class.min(), per_class.max()) == (smallest, largest)
    assert not np.array_equal(chosen, choose_labelled(digits.train_label, count, seed=4))


def test_a_shift_moves_the_image_and_fills_with_black() -> None:
    image = np.zeros((200, 1, SIZE, SIZE), np.uint8)
    image[:, :, 3, 5] = 200
    moved = augment(np.random.default_rng(0), image, shift_pixels=1, noise=0)
    places = {tuple(np.argwhere(one[0])[0].tolist()) for one in moved}
    assert places == {(row, column) for row in (2, 3, 4) for column in (4, 5, 6)}
    assert (moved.reshape(200, -1).sum(axis=1) == 200).all()


def test_noise_stays_within_grey(digits: Digits) -> None:
    noisy = augment(
        np.random.default_rng(0), digits.train_image[:100], shift_pixels=0, noise=60
    ).astype(int)
    difference = noisy - digits.train_image[:100]
    middle = (digits.train_image[:100] > 100) & (digits.train_image[:100] < 155)
    assert noisy.min() == 0
    assert noisy.max() == 255
    assert difference[middle].std() == pytest.approx(60, rel=0.25)


def test_batches_are_numbered_and_the_same_each_time(digits: Digits) -> None:
    source = BatchSource(digits, SETTINGS)
    first, again = list(source), list(source)
    assert len(first) == len(source) == 6
    assert [int(number[0]) for _, _, number in first] == [0, 1, 2, 3, 4, 5]
    for (image, label, _), (same_image, same_label, _) in zip(first, again, strict=True):
        assert np.array_equal(image, same_image)
        assert np.array_equal(label, same_label)
    assert len({image.tobytes() for image, _, _ in first}) == 6
    assert first[0][0].shape == (16, 1, SIZE, SIZE)
    assert first[0][0].dtype == np.uint8


def test_each_student_keeps_to_its_own_labelled_digits(digits: Digits) -> None:
    plain = DemoSettings(seeds=2, steps=20, batch_size=64, labelled=40, shift_pixels=0, noise=0.0)
    batches = list(BatchSource(digits, plain))
    for seed in range(2):
        seen = {
            image.tobytes() for batch in batches[20 * seed : 20 * seed + 20] for image in batch[0]
        }
        assert len(seen) == 40
