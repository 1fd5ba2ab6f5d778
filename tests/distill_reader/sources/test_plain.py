"""A plain iterable is resumed by reading again; one that changed meanwhile is told from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.sources.iterables import (
    MAX_DIGESTS,
    DigestChain,
    PlainSource,
    decoded,
    encoded,
)
from edl.distill_reader.sources.source import Mark
from edl.distill_reader.structure import take_apart
from edl.proto.arena import dtype_named
from edl.runtime.errors import UsageError

COUNT = 300


class Source:
    def __init__(self, count: int, at: Callable[[int], Any]) -> None:
        self.count, self.at = count, at

    def __iter__(self) -> Iterator[Any]:
        return (self.at(number) for number in range(self.count))


def batch(number: int, other: int = -1, place: int = 0) -> Any:
    """Batch `number`; that of number `other` has another value at one place."""
    x = np.full((4, 4096), number, np.uint8)
    x[0, place] += number == other
    return x, np.arange(4) + number


def marked(source: Source, taken: int) -> Mark:
    reading = PlainSource(source).begin(0, 0, None)
    mark: Mark = {}
    for _ in range(taken):
        mark = reading.mark(take_apart(next(reading)).arrays)
    return json.loads(json.dumps(mark))  # type: ignore[no-any-return]


def resumed(source: Source, taken: int, mark: Mark) -> Any:
    return next(PlainSource(source).begin(0, taken, mark))


@given(st.data())
def test_a_replay_that_differs_says_where(data: st.DataObject) -> None:
    taken = data.draw(st.integers(1, COUNT))
    other = data.draw(st.integers(0, taken - 1))
    mark = marked(Source(COUNT, lambda n: np.full(2, n)), taken)
    with pytest.raises(UsageError, match="is not the one that was read before") as raised:
        resumed(Source(COUNT, lambda n: np.full(2, n + (n == other))), taken, mark)
    agreed, differs = map(int, re.findall(r"its first (\d+)", str(raised.value)))
    assert agreed <= other < differs
    assert differs - agreed <= max(1, 2 * taken // MAX_DIGESTS)


def test_small_fields_are_compared_whole_and_large_ones_at_many_places() -> None:
    mark = marked(Source(9, batch), 8)
    with pytest.raises(UsageError, match="first 5 batches are the same, its first 6 are not"):
        resumed(Source(9, lambda n: batch(n, other=5)), 8, mark)

    def other_label(number: int) -> Any:
        x, ids = batch(number)
        return x, ids + 4 * (number == 2)

    with pytest.raises(UsageError, match="first 2 batches are the same, its first 3 are not"):
        resumed(Source(9, other_label), 8, mark)


@pytest.mark.parametrize(
    "changed",
    [
        lambda n: (batch(n)[0].astype(np.int8), batch(n)[1]),
        lambda n: (batch(n)[0].reshape(2, 8192), batch(n)[1]),
        lambda n: batch(n)[:1],
        lambda n: batch(n)[::-1],
    ],
)
def test_another_dtype_shape_or_structure_is_another_batch(changed: Callable[[int], Any]) -> None:
    with pytest.raises(UsageError, match="first 0 batches are the same, its first 1 are not"):
        resumed(Source(9, changed), 3, marked(Source(9, batch), 3))


def test_one_that_has_become_shorter_says_so() -> None:
    with pytest.raises(UsageError, match="only 5 batches now, and 8 were delivered"):
        resumed(Source(5, batch), 8, marked(Source(9, batch), 8))


def test_what_the_source_raises_while_read_again_is_raised_itself() -> None:
    error = OSError("the disk is gone")

    def broken(number: int) -> Any:
        if number == 2:
            raise error
        return batch(number)

    with pytest.raises(OSError, match="gone") as raised:
        resumed(Source(9, broken), 5, marked(Source(9, batch), 5))
    assert raised.value is error


@given(st.integers(0, 600))
def test_a_digest_chain_stays_short_and_comes_back_from_json(length: int) -> None:
    chain = DigestChain()
    for number in range(length):
        chain = chain.extended([np.array(number)])
    assert chain.length == length
    assert len(chain.digests) <= MAX_DIGESTS
    assert DigestChain.from_json(json.loads(json.dumps(chain.to_json()))) == chain
    assert chain.divergence(chain) is None


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
keys = st.one_of(st.text(), st.integers(), st.just("$kind"))
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner)
    ),
    max_leaves=12,
)


def there_and_back(state: Any) -> Any:
    return decoded(json.loads(json.dumps(encoded(state))))


@given(states)
def test_every_state_comes_back(state: Any) -> None:
    assert there_and_back(state) == state


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.zeros((0, 4), np.float32),
        np.array(3.5),
        np.array(["a", "bc"]),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
)
def test_arrays_come_back_and_can_be_written_to(array: Any) -> None:
    back, number = (there_and_back({"state": one})["state"] for one in (array, np.float32(0.1)))
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.flags.writeable
    assert (type(number), number) == (np.float32, np.float32(0.1))


def test_a_state_is_a_copy() -> None:
    live = {"at": [1]}
    state = encoded(live)
    live["at"].append(2)
    assert state == {"at": [1]}


def test_what_cannot_be_written_is_named_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"holds a set at state\.workers\[1\]\.seen"):
        encoded({"workers": [{}, {"seen": {1}}]})


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float8_e5m2", [("a", "<i4", (2,)), ("b", [("c", "<f2")])], "V4", "<M8[ns]"],
)
def test_every_dtype_comes_back(dtype: Any) -> None:
    array = np.zeros(3, dtype if isinstance(dtype, list) else dtype_named(dtype))
    assert there_and_back(array).dtype == array.dtype


def test_a_bytearray_comes_back() -> None:
    back = there_and_back(bytearray(b"ab"))
    assert (type(back), back) == (bytearray, b"ab")


@pytest.mark.parametrize(
    "lossy",
    [
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(2, np.dtype([("a", "u1"), ("b", "<f8")], align=True)),
        np.array([None]),
    ],
)
def test_an_array_that_would_change_is_refused(lossy: Any) -> None:
    with pytest.raises(UsageError, match=r"state\.seen"):
        encoded({"seen": lossy})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "bool"])
def test_tensors_come_back(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4).to(getattr(torch, dtype))
    back = there_and_back(tensor)
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_a_tensor_that_numpy_cannot_hold_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"state\.seen"):
        encoded({"seen": torch.eye(2).to_sparse()})
