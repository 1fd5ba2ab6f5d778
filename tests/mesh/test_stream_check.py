"""The check of what a training loop receives notices each kind of fault."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edl.mesh.demo.stream_check import StreamCheck, StreamFacts


def batch(number: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(number)
    image = rng.integers(0, 256, (4, 1, 2, 2)).astype(np.uint8)
    return image, rng.integers(0, 10, 4), np.array([number]), rng.normal(size=(4, 3))


def facts_of(batches: Sequence[tuple[Any, ...]]) -> StreamFacts:
    check = StreamCheck()
    for _ in check.watch(batches):
        pass
    return check.facts


def test_passes_on_what_the_student_needs_and_hashes_every_byte() -> None:
    check = StreamCheck()
    passed = list(check.watch([batch(0), batch(1)]))
    digest = hashlib.sha256()
    for given, original in zip(passed, (batch(0), batch(1)), strict=True):
        assert len(given) == 3
        for field, index in zip(given, (0, 1, 3), strict=True):
            assert np.array_equal(field, original[index])
            digest.update(original[index].tobytes())
    assert check.facts == StreamFacts(2, 8, 0, 0, digest.hexdigest())


def test_works_without_soft_labels() -> None:
    assert facts_of([batch(0)[:3]]).batches == 1


@pytest.mark.parametrize(
    ("numbers", "duplicates", "out_of_order"),
    [((0, 1, 2, 3), 0, 0), ((0, 1, 1, 2), 1, 1), ((0, 2, 1, 3), 0, 1), ((0, 1, 2, 0), 1, 1)],
)
def test_counts_repetitions_and_disorder(
    numbers: Sequence[int], duplicates: int, out_of_order: int
) -> None:
    facts = facts_of([batch(number) for number in numbers])
    assert (facts.batches, facts.duplicates, facts.out_of_order) == (4, duplicates, out_of_order)


def test_another_label_or_another_order_is_another_hash() -> None:
    whole = facts_of([batch(0), batch(1)]).sha256
    image, label, number, soft = batch(1)
    wrong = soft.copy()
    wrong[3, 2] = np.nextafter(wrong[3, 2], 9)
    assert facts_of([batch(0), (image, label, number, wrong)]).sha256 != whole
    assert facts_of([batch(1), batch(0)]).sha256 != whole
    assert facts_of([batch(0)]).sha256 != whole


def test_views_that_are_not_contiguous_are_hashed_by_value() -> None:
    image, label, number, soft = batch(0)
    wide = np.zeros((4, 6))
    wide[:, ::2] = soft
    assert facts_of([(image, label, number, wide[:, ::2])]) == facts_of([batch(0)])
