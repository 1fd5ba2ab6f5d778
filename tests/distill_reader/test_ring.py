"""The memory of a batch is given back with its last view, not before and not later."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from edl.distill_reader.ring import Ring
from edl.proto.arena import Array


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def used_after_reclaim(ring: Ring) -> int:
    gc.collect()
    ring.reclaim()
    return ring.arena.used_bytes


def test_views_hold_what_was_put(ring: Ring) -> None:
    arrays: list[Array] = [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.zeros((0, 4)),
        np.array([1.5], np.float32),
    ]
    for view, array in zip(ring.views(ring.put(arrays)), arrays, strict=True):
        np.testing.assert_array_equal(view, array)
        assert view.dtype == array.dtype


def test_memory_is_given_back_with_the_last_view(ring: Ring) -> None:
    views = ring.views(ring.put([np.zeros(100), np.ones(100)]))
    kept = views[1][10:20].reshape(2, 5)  # a view of a view holds the record too
    del views
    assert used_after_reclaim(ring) > 0
    np.testing.assert_array_equal(kept, 1.0)
    del kept
    assert used_after_reclaim(ring) == 0


def test_a_kept_batch_is_not_overwritten(ring: Ring) -> None:
    kept = ring.views(ring.put([np.full(1000, 7)]))
    for value in range(50):
        del value
        ring.views(ring.put([np.zeros(1000, dtype=np.int64)]))
    np.testing.assert_array_equal(kept[0], 7)


def test_memory_is_used_again(ring: Ring) -> None:
    before = ring.arena.size_bytes
    for _ in range(1000):
        ring.views(ring.put([np.zeros(64 << 10, np.uint8)]))
    assert ring.arena.size_bytes == before
