"""Batches are taken apart and put together without changing what the user gave."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import structure
from edl.distill_reader.structure import put_together, take_apart
from edl.runtime.errors import BatchError, UsageError

IMAGE = np.arange(12, dtype=np.float32).reshape(3, 4)
LABEL = np.array([1, 2, 3])
SOFT = {"logits": np.ones((3, 2), np.float32), "hidden": np.zeros((3, 5), np.float32)}

Pair = namedtuple("Pair", ["image", "label"])


def round_trip(batch: Any) -> Any:
    parts = take_apart(batch)
    copies = [array.copy() for array in parts.arrays]
    return put_together(parts.skeleton, copies, SOFT)


@pytest.mark.parametrize("batch", [(IMAGE, LABEL), [IMAGE, LABEL], Pair(IMAGE, LABEL), IMAGE])
def test_labels_are_appended_to_a_sequence(batch: Any) -> None:
    back = round_trip(batch)
    assert type(back) is (list if isinstance(batch, list) else tuple)
    expected = [IMAGE] if isinstance(batch, np.ndarray) else [*batch]
    for field, same in zip(back, [*expected, *SOFT.values()], strict=True):
        np.testing.assert_array_equal(field, same)


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_labels_join_a_mapping_under_output_names(kind: type) -> None:
    batch = round_trip(kind({"image": IMAGE, "label": LABEL}))
    assert type(batch) is dict
    assert list(batch) == ["image", "label", *SOFT]
    with pytest.raises(UsageError, match="'logits' has the name of a field"):
        round_trip(kind({"logits": IMAGE}))


def test_what_is_no_array_comes_back_as_it_was() -> None:
    name = object()
    batch = round_trip((IMAGE, name, None, 7, {"nested": [LABEL, "text"]}))
    assert batch[1] is name
    assert batch[2:4] == (None, 7)
    np.testing.assert_array_equal(batch[4]["nested"][0], LABEL)
    assert batch[4]["nested"][1] == "text"


def test_fields_are_the_arrays_at_the_top() -> None:
    assert take_apart((IMAGE, "name", LABEL)).fields == ((0, 0), (2, 1))
    assert take_apart({"a": LABEL, "b": [IMAGE]}).fields == (("a", 0),)
    assert take_apart(IMAGE).fields == ((0, 0),)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ((IMAGE, LABEL), 3),
        ((np.array(1.0), LABEL), 3),
        (np.array(1.0), 1),
        ({"words": [np.arange(7), np.arange(2)], "image": IMAGE}, 3),
        ([[np.arange(7)]], 7),  # there is nothing better to count
    ],
)
def test_samples_are_rows_of_the_first_field(batch: Any, samples: int) -> None:
    assert take_apart(batch).samples == samples


def test_a_list_of_one_dict_is_fed_and_labelled_as_the_dict() -> None:
    """Static-graph loaders of Paddle yield one dict for each device."""
    assert take_apart([{"image": IMAGE}]).fields == (("image", 0),)
    (batch,) = round_trip([{"image": IMAGE}])
    assert list(batch) == ["image", *SOFT]


NO_ARRAYS: tuple[Any, ...] = ((), [1, 2], "text", {"a": None})
RECORDS = np.zeros(2, [("a", "f4"), ("b", "i4")])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        *((batch, "at least one numpy array") for batch in NO_ARRAYS),
        ((np.array([{}, {}], dtype=object),), "fixed dtype"),
        ((RECORDS,), "one plain array for each"),
        ((RECORDS.view("V8"),), "one plain array for each"),
        ((np.ma.masked_array(IMAGE, IMAGE > 3),), "one plain array for each"),
    ],
)
def test_batches_that_cannot_travel_are_refused(batch: Any, words: str) -> None:
    with pytest.raises(BatchError, match=words):
        take_apart(batch)


@pytest.mark.parametrize("dtypes", ["f", "Bf", "?cq"])
def test_fast_path_for_flat_tuples_is_exact(monkeypatch: pytest.MonkeyPatch, dtypes: str) -> None:
    batch = tuple(np.zeros((3, 2), dtype) for dtype in dtypes)
    soft = {"soft": np.ones((3, 5), np.float32)}
    parts = take_apart(batch)
    whole = put_together(parts.skeleton, parts.arrays, soft)
    monkeypatch.setattr(structure, "_taken_apart_flat", lambda batch: None)
    assert take_apart(batch) == parts
    assert [*map(id, put_together(take_apart(batch).skeleton, batch, soft))] == [*map(id, whole)]
