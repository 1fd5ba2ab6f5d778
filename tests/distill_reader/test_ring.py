"""The memory of a batch is given back with its last view, not before and not later."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from edl.distill_reader.ring import Leases, Ring
from edl.proto.arena import Arena, Array


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def used_after_reclaim(ring: Ring) -> int:
    gc.collect()
    ring.reclaim()
    return ring.arena.used_bytes


def put(ring: Ring, *arrays: Array) -> list[Array]:
    return ring.put(arrays)[1]


def test_views_hold_what_was_put(ring: Ring) -> None:
    arrays: list[Array] = [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.zeros((0, 4)),
        np.array([1.5], np.float32),
    ]
    for view, array in zip(put(ring, *arrays), arrays, strict=True):
        np.testing.assert_array_equal(view, array)
        assert view.dtype == array.dtype


def test_memory_is_given_back_with_the_last_view(ring: Ring) -> None:
    views = put(ring, np.zeros(100), np.ones(100))
    kept = views[1][10:20].reshape(2, 5)  # a view of a view holds the record too
    del views
    assert used_after_reclaim(ring) > 0
    np.testing.assert_array_equal(kept, 1.0)
    del kept
    assert used_after_reclaim(ring) == 0


def test_a_kept_batch_is_not_overwritten(ring: Ring) -> None:
    kept = put(ring, np.full(1000, 7))
    for value in range(50):
        del value
        put(ring, np.zeros(1000, dtype=np.int64))
    np.testing.assert_array_equal(kept[0], 7)


def test_memory_is_used_again(ring: Ring) -> None:
    before = ring.arena.size_bytes
    for _ in range(1000):
        put(ring, np.zeros(64 << 10, np.uint8))
    assert ring.arena.size_bytes == before


def test_a_batch_that_cannot_be_copied_leaves_no_record(ring: Ring) -> None:
    class Torn:
        dtype, shape = np.dtype(np.float32), (2,)

        def __array__(self, *_: object, **__: object) -> Array:
            raise ValueError("no numbers")

    with pytest.raises(ValueError, match="no numbers"):
        put(ring, Torn())  # type: ignore[arg-type]
    assert used_after_reclaim(ring) == 0


def test_a_lease_ends_once_and_one_that_is_revoked_never() -> None:
    arena = Arena.create(4096)
    leases = Leases(arena)
    layout = (np.dtype(np.int64), (2,))
    first, second = (arena.allocate([layout, layout]) for _ in range(2))
    kept, gone = leases.views(first), leases.views(second)
    leases.revoke(second)
    del gone
    assert [*leases.over()] == []
    again = leases.views(second)
    del kept, again
    assert [*leases.over()] == [first.offset, second.offset]
    assert [*leases.over()] == []
    arena.close()
