"""The reader over `paddle.io.DataLoader`, and as one: tensors, places, forked workers, names."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import paddle
import pytest

from edl.distill_reader.adapters.paddle import PaddleLoader
from edl.distill_reader.structure import put_together, take_apart
from edl.errors import BatchError, UsageError
from edl.proto.datatypes import datatype_of
from edl.supervise import python_command, start
from edl.tests.distill_reader.readers import NOBODY, Batches, Samples, check_epoch, reader_of
from edl.tests.distill_reader.test_structure import IMAGE, LABEL, round_trip
from edl.tests.scripted_teacher import CLASSES, logits_of

pytestmark = pytest.mark.system

SAMPLES, BATCH = 37, 8


class Rows(Samples, paddle.io.Dataset):  # type: ignore[misc]  # Paddle is not typed
    pass


@pytest.mark.parametrize("workers", [0, 2])
def test_three_epochs_of_paddle_tensors(teacher_address: str, workers: int) -> None:
    loader = paddle.io.DataLoader(
        Rows(SAMPLES), batch_size=BATCH, num_workers=workers, shuffle=True
    )
    with reader_of(loader, teacher_address) as reader:
        assert len(reader) == len(loader) == 5
        for _ in range(3):
            seen: list[int] = []
            for x, ids, soft in reader:
                assert all(isinstance(tensor, paddle.Tensor) for tensor in (x, ids, soft))
                np.testing.assert_array_equal(soft.numpy(), logits_of(x.numpy()))
                np.testing.assert_array_equal(x.numpy()[:, 0], ids.numpy())
                seen += ids.numpy().tolist()
            assert sorted(seen) == list(range(SAMPLES))


def test_no_thread_ends_between_epochs(teacher_address: str) -> None:
    """An ending thread that has used Paddle holds a lock that forked workers would wait for."""
    loader = paddle.io.DataLoader(Rows(SAMPLES), batch_size=BATCH, num_workers=2)
    with reader_of(loader, teacher_address) as reader:
        pullers = set()
        for epoch in range(10):
            for _ in reader:
                if epoch % 2:
                    break
            pullers |= {t.ident for t in threading.enumerate() if t.name == "edl-reader-puller"}
        assert len(pullers) == 1


def test_arrays_come_as_tensors_on_the_place_asked_for(teacher_address: str) -> None:
    source = Batches(3)
    for places in (None, "cpu", paddle.CPUPlace(), [paddle.CPUPlace()]):
        with reader_of(source, teacher_address) as reader:
            loader = PaddleLoader(reader, places=places)
            assert len(loader) == 3
            for _ in range(2):
                batches = list(loader())
                assert all(type(batch) is list for batch in batches)
                for tensor in (tensor for batch in batches for tensor in batch):
                    assert isinstance(tensor, paddle.Tensor)
                    assert tensor.place == paddle.CPUPlace()
                    assert tensor.stop_gradient
                check_epoch(source, [[t.numpy() for t in batch] for batch in batches])


def test_kept_tensors_stay_what_they_were(teacher_address: str) -> None:
    source = Batches(200, shape=(64,))
    with reader_of(source, teacher_address, upper_bytes=20_000) as reader:
        kept = list(PaddleLoader(reader))
        check_epoch(source, [[tensor.numpy() for tensor in batch] for batch in kept])


def test_numbers_that_paddle_would_take_for_others_are_refused(teacher_address: str) -> None:
    """Its tensors of bfloat16 are made of uint16: 1 would become 9e-41."""
    for dtype in (np.uint16, np.uint32):
        source = [{"x": np.ones((2, 3), np.float32), "pixels": np.ones(2, dtype)}]
        with (
            reader_of(source, teacher_address) as reader,
            pytest.raises(BatchError, match=f"no tensors of {np.dtype(dtype)}"),
        ):
            list(PaddleLoader(reader))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"feed_list": "x"}, r"as in feed_list=\['x'\]"),
        ({"places": ["cpu", "cpu"]}, "one rank for each device"),
        ({"places": "moon"}, "'moon'"),
        ({"places": 5}, "put on 5"),
    ],
)
def test_loaders_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="PaddleLoader iterates a DistilReader, not a list"):
        PaddleLoader([1])  # type: ignore[arg-type]
    with reader_of(Batches(1), NOBODY) as reader, pytest.raises(UsageError, match=words):
        PaddleLoader(reader, **options)


@pytest.mark.parametrize("how", ["stock", "arrays by name"])
def test_a_static_program_is_fed(how: str, teacher_address: str) -> None:
    program = python_command(
        "trainer", "edl.tests.distill_reader.static_graph_program", how, teacher_address
    )
    trainer = start(program)
    try:
        told = trainer.expect(r"fed (\d+) batches, the last of (\d+) classes", timeout_s=60)
        assert (int(told[1]), int(told[2])) == (200, CLASSES)
        assert trainer.wait(10) == 0, trainer.tail()
    finally:
        trainer.stop()


# --- tensors of Paddle in batches


def test_paddle_bfloat16_travels_as_that_and_comes_back() -> None:
    values = paddle.to_tensor(IMAGE).astype("bfloat16")
    parts = take_apart((values,))
    assert datatype_of(parts.arrays[0].dtype) == "BF16"
    soft = {"logits": parts.arrays[0]}
    back, label = put_together(parts.skeleton, parts.arrays, soft)
    for tensor in (back, label):
        assert tensor.dtype == paddle.bfloat16
        np.testing.assert_array_equal(tensor.astype("float32").numpy(), IMAGE)


def test_paddle_tensors_keep_whether_they_want_a_gradient() -> None:
    wanting, plain = paddle.to_tensor(IMAGE, stop_gradient=False), paddle.to_tensor(IMAGE)
    batch = round_trip((wanting, plain))
    assert [tensor.stop_gradient for tensor in batch] == [False, True, True, True]


def test_paddle_tensors_come_back_as_paddle_tensors() -> None:
    batch = round_trip([paddle.to_tensor(IMAGE), LABEL])
    assert isinstance(batch[0], paddle.Tensor)
    assert batch[0].dtype == paddle.float32
    assert isinstance(batch[1], np.ndarray)
    assert isinstance(batch[2], paddle.Tensor), "soft labels follow the framework of the batch"


def test_paddle_reads_labels_and_fields_where_they_lie() -> None:
    parts = take_apart((paddle.to_tensor(IMAGE),))
    array, label = IMAGE.copy(), np.zeros((3, 2), np.float32)
    tensor, soft = put_together(parts.skeleton, [array], {"logits": label})
    array[0, 0], label[0, 0] = 70, 80
    assert (float(tensor[0, 0]), float(soft[0, 0])) == (70, 80)
