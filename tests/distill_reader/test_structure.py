"""Batches are taken apart and put together without changing what the user gave."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import structure
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


def test_a_tuple_without_arrays_stays_what_it_is() -> None:
    import torch

    assert type(round_trip((IMAGE, torch.Size((2, 3))))[1]) is torch.Size


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


def test_paddle_reads_labels_and_fields_where_they_lie() -> None:
    import paddle

    parts = take_apart((paddle.to_tensor(IMAGE),))
    array, label = IMAGE.copy(), np.zeros((3, 2), np.float32)
    tensor, soft = put_together(parts.skeleton, [array], {"logits": label})
    array[0, 0], label[0, 0] = 70, 80
    assert (float(tensor[0, 0]), float(soft[0, 0])) == (70, 80)


def test_torch_tensors_come_back_as_torch_tensors() -> None:
    import torch

    batch = round_trip([torch.from_numpy(IMAGE), LABEL, {"id": torch.tensor(7)}])
    assert isinstance(batch[0], torch.Tensor)
    assert torch.equal(batch[0], torch.from_numpy(IMAGE))
    assert isinstance(batch[1], np.ndarray)
    assert batch[2]["id"].item() == 7
    assert isinstance(batch[3], torch.Tensor), "soft labels follow the framework of the batch"


def test_torch_reads_labels_and_fields_where_they_lie() -> None:
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        (array,) = take_apart((torch.ones(3, 2, dtype=dtype),)).arrays
        parts, label = take_apart((torch.ones(3, 2, dtype=dtype),)), np.ones((3, 2), np.float32)
        tensor, soft = put_together(parts.skeleton, [array], {"logits": label})
        assert tensor.dtype == dtype
        assert tensor.data_ptr() == array.ctypes.data
        assert soft.data_ptr() == label.ctypes.data


@pytest.mark.parametrize(
    "name",
    ["bfloat16", "float16", "float64", "uint8", "uint16", "int64", "bool", "complex64"],
)
def test_each_dtype_of_torch_comes_back(name: str) -> None:
    import torch

    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name)).t()  # not contiguous either
    back = round_trip((tensor,))[0]
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_torch_bfloat16_travels_as_that() -> None:
    import torch

    (array,) = take_apart((torch.ones(2, dtype=torch.bfloat16),)).arrays
    assert datatype_of(array.dtype) == "BF16"


def test_torch_tensors_keep_whether_they_want_a_gradient() -> None:
    import torch

    batch = round_trip((torch.ones(2, 3, requires_grad=True), torch.ones(2).conj()))
    assert [tensor.requires_grad for tensor in batch] == [True, False, False]


def test_a_packed_sequence_inside_a_batch_stays_one() -> None:
    import torch
    from torch.nn.utils.rnn import PackedSequence, pack_sequence

    packed = pack_sequence([torch.arange(4), torch.arange(2)])
    back = round_trip({"image": IMAGE, "words": packed})["words"]
    assert isinstance(back, PackedSequence)
    assert torch.equal(back.data, packed.data)
    assert torch.equal(back.batch_sizes, packed.batch_sizes)


def test_torch_tensors_that_numpy_cannot_hold_are_refused() -> None:
    import torch

    for tensor in (torch.eye(3).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(BatchError, match="to_dense"):
            take_apart((tensor,))
    with pytest.raises(BatchError, match="float8_e5m2 cannot travel"):
        take_apart((torch.ones(2, dtype=torch.float8_e5m2),))


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
