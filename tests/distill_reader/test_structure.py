"""Batches are taken apart and put together without changing what the user gave."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import structure
from edl.distill_reader.structure import put_together, take_apart
from edl.errors import BatchError, UsageError

IMAGE = np.arange(12, dtype=np.float32).reshape(3, 4)
LABEL = np.array([1, 2, 3])
SOFT = {"logits": np.ones((3, 2), np.float32)}

Pair = namedtuple("Pair", ["image", "label"])


def round_trip(batch: Any) -> Any:
    parts = take_apart(batch)
    copies = [array.copy() for array in parts.arrays]
    return put_together(parts.without_arrays().skeleton, copies, SOFT)


def test_tuple_gets_labels_behind_its_fields() -> None:
    image, label, soft = round_trip((IMAGE, LABEL))
    np.testing.assert_array_equal(image, IMAGE)
    np.testing.assert_array_equal(label, LABEL)
    np.testing.assert_array_equal(soft, SOFT["logits"])


def test_list_stays_a_list_and_named_tuple_becomes_a_longer_tuple() -> None:
    assert isinstance(round_trip([IMAGE, LABEL]), list)
    batch = round_trip(Pair(IMAGE, LABEL))
    assert isinstance(batch, tuple)
    assert len(batch) == 3


def test_dict_gets_labels_under_output_names() -> None:
    batch = round_trip({"image": IMAGE, "label": LABEL})
    assert list(batch) == ["image", "label", "logits"]


def test_dict_with_a_field_of_that_name_is_refused() -> None:
    with pytest.raises(UsageError, match="'logits' has the name of a field"):
        round_trip({"logits": IMAGE})


def test_bare_array_becomes_a_pair() -> None:
    image, soft = round_trip(IMAGE)
    np.testing.assert_array_equal(image, IMAGE)
    assert soft.shape == (3, 2)


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


def test_samples_are_rows_of_the_first_array() -> None:
    assert take_apart((IMAGE, LABEL)).samples == 3
    assert take_apart((np.array(1.0), LABEL)).samples == 3
    assert take_apart(np.array(1.0)).samples == 1


def test_samples_are_rows_of_a_field_and_not_of_what_lies_deeper() -> None:
    assert take_apart({"words": [np.arange(7), np.arange(2)], "image": IMAGE}).samples == 3
    assert take_apart([[np.arange(7)]]).samples == 7, "there is nothing better to count"


def test_sentences_of_different_lengths_pass_unchanged() -> None:
    sentences = [np.arange(length) for length in (5, 0, 9)]
    parts = take_apart({"words": sentences, "image": IMAGE})
    assert parts.fields == (("image", 3),)
    back = round_trip({"words": sentences, "image": IMAGE})
    for sentence, same in zip(back["words"], sentences, strict=True):
        np.testing.assert_array_equal(sentence, same)


def test_mappings_of_any_kind_become_dicts() -> None:
    batch = round_trip(UserDict({"image": IMAGE, "name": "a"}))
    assert type(batch) is dict
    assert list(batch) == ["image", "name", "logits"]


def test_a_list_of_one_dict_is_fed_and_labelled_as_the_dict() -> None:
    """Static-graph loaders of Paddle yield one dict for each device."""
    assert take_apart([{"image": IMAGE}]).fields == (("image", 0),)
    (batch,) = round_trip([{"image": IMAGE}])
    assert list(batch) == ["image", "logits"]


@pytest.mark.parametrize("batch", [(), [1, 2], "text", {"a": None}])
def test_batch_without_arrays_is_refused(batch: Any) -> None:
    with pytest.raises(BatchError, match="at least one numpy array"):
        take_apart(batch)


def test_array_of_objects_is_refused() -> None:
    with pytest.raises(BatchError, match="fixed dtype"):
        take_apart((np.array([{}, {}], dtype=object),))


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, [("a", "f4"), ("b", "i4")]), np.ma.masked_array(IMAGE, IMAGE > 3)],
    ids=["records", "masked"],
)
def test_array_that_would_lose_a_part_is_refused(array: Any) -> None:
    with pytest.raises(BatchError, match="one plain array for each"):
        take_apart((array,))


@pytest.mark.parametrize("dtypes", ["f", "Bf", "?cq"])
def test_a_tuple_of_arrays_is_what_it_is_the_long_way(
    monkeypatch: pytest.MonkeyPatch, dtypes: str
) -> None:
    batch = tuple(np.zeros((3, 2), dtype) for dtype in dtypes)
    soft = {"soft": np.ones((3, 5), np.float32)}
    parts = take_apart(batch)
    whole = put_together(parts.skeleton, parts.arrays, soft)
    monkeypatch.setattr(structure, "_taken_apart_flat", lambda batch: None)
    assert take_apart(batch) == parts
    assert [*map(id, put_together(take_apart(batch).skeleton, batch, soft))] == [*map(id, whole)]
