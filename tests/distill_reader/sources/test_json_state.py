"""States of other libraries come back from JSON as they were."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill_reader.sources.json_state import decoded, encoded
from edl.errors import UsageError

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
    back = there_and_back({"state": array})["state"]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.flags.writeable


def test_numbers_of_numpy_keep_their_type() -> None:
    back = there_and_back(np.float32(0.1))
    assert type(back) is np.float32
    assert back == np.float32(0.1)


def test_the_state_of_a_torch_generator_comes_back() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator()
    generator.manual_seed(7)
    state = there_and_back({"rng": generator.get_state()})
    drawn = torch.rand(3, generator=generator)
    generator.set_state(state["rng"])
    assert torch.equal(torch.rand(3, generator=generator), drawn)


def test_a_state_is_a_copy() -> None:
    live = {"at": [1]}
    state = encoded(live)
    live["at"].append(2)
    assert state == {"at": [1]}


def test_what_cannot_be_written_is_named_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"holds a set at state\.workers\[1\]\.seen"):
        encoded({"workers": [{}, {"seen": {1}}]})
