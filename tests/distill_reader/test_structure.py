"""Batches are taken apart and put together without changing what the user gave."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.structure import put_together, take_apart
from edl.errors import BatchError, UsageError
from edl.proto.datatypes import datatype_of

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


def test_paddle_bfloat16_travels_as_that_and_comes_back() -> None:
    import paddle

    values = paddle.to_tensor(IMAGE).astype("bfloat16")
    parts = take_apart((values,))
    assert datatype_of(parts.arrays[0].dtype) == "BF16"
    soft = {"logits": parts.arrays[0]}
    back, label = put_together(parts.skeleton, parts.arrays, soft)
    for tensor in (back, label):
        assert tensor.dtype == paddle.bfloat16
        np.testing.assert_array_equal(tensor.astype("float32").numpy(), IMAGE)


def test_paddle_tensors_keep_whether_they_want_a_gradient() -> None:
    import paddle

    wanting, plain = paddle.to_tensor(IMAGE, stop_gradient=False), paddle.to_tensor(IMAGE)
    batch = round_trip((wanting, plain))
    assert [tensor.stop_gradient for tensor in batch] == [False, True, True]


def test_paddle_tensors_come_back_as_paddle_tensors() -> None:
    import paddle

    batch = round_trip([paddle.to_tensor(IMAGE), LABEL])
    assert isinstance(batch[0], paddle.Tensor)
    assert batch[0].dtype == paddle.float32
    assert isinstance(batch[1], np.ndarray)
    assert isinstance(batch[2], paddle.Tensor), "soft labels follow the framework of the batch"
