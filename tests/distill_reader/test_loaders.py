"""Loaders of Paddle and PyTorch under a reader, and the reader as one of theirs; Lightning."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import pytorch_lightning as lightning
import torch

from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.paddle import PaddleLoader
from edl.distill_reader.adapters.torch import TorchLoader
from edl.distill_reader.structure import put_together, take_apart
from edl.integrations.lightning import DistilDataModule, ReaderStatsLogger
from edl.proto.datatypes import datatype_of
from edl.runtime.errors import BatchError, UsageError
from edl.runtime.supervise import python_command, start
from edl.tests.distill_reader.readers import NOBODY, ROWS, Batches, Samples, check_epoch, reader_of
from edl.tests.distill_reader.test_structure import IMAGE, LABEL, round_trip
from edl.tests.scripted_teacher import CLASSES, logits_of
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system
# As in `sources/test_framework_loaders.py`.
paddle.disable_signal_handler()

SAMPLES, BATCH = 37, 8
#: Of each framework its own loader, ours, and its tensors.
FRAMEWORKS: dict[str, tuple[Any, Any, Any]] = {
    "paddle": (paddle.io.DataLoader, PaddleLoader, paddle.Tensor),
    "torch": (torch.utils.data.DataLoader, TorchLoader, torch.Tensor),
}
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


class Rows(Samples, paddle.io.Dataset):  # type: ignore[misc]  # Paddle is not typed
    pass


def arrays_of(batches: Any) -> list[list[Any]]:
    return [[tensor.numpy() for tensor in batch] for batch in batches]


@each_framework
@pytest.mark.parametrize("workers", [0, 2])
def test_three_epochs_of_a_stock_loader(framework: str, workers: int, teacher_address: str) -> None:
    """No thread ends between: one that has used Paddle holds a lock that workers would wait for."""
    make, ours, tensors = FRAMEWORKS[framework]
    stock = make(Rows(SAMPLES), batch_size=BATCH, num_workers=workers, shuffle=True)
    pullers = set()
    with reader_of(stock, teacher_address) as reader:
        loader = ours(reader)
        assert len(reader) == len(loader) == len(stock) == 5
        for _ in range(3):
            for _ in reader:
                break
            seen: list[int] = []
            for batch in loader:
                assert all(isinstance(tensor, tensors) for tensor in batch)
                ((x, ids, soft),) = arrays_of([batch])
                np.testing.assert_array_equal(soft, logits_of(x))
                np.testing.assert_array_equal(x[:, 0], ids)
                seen += ids.tolist()
            assert sorted(seen) == list(range(SAMPLES))
            pullers |= {t.ident for t in threading.enumerate() if t.name == "edl-reader-puller"}
    assert len(pullers) == 1


@each_framework
def test_kept_tensors_stay_what_they_were(framework: str, teacher_address: str) -> None:
    source = Batches(200, shape=(64,))
    with reader_of(source, teacher_address, upper_bytes=20_000) as reader:
        kept = list(FRAMEWORKS[framework][1](reader))
    check_epoch(source, arrays_of(kept))


def test_arrays_come_as_paddle_tensors_on_the_place_asked_for(teacher_address: str) -> None:
    source = Batches(3)
    for places in (None, "cpu", paddle.CPUPlace(), [paddle.CPUPlace()]):
        with reader_of(source, teacher_address) as reader:
            batches = list(PaddleLoader(reader, places=places)())
        assert all(type(batch) is list for batch in batches)
        for tensor in (tensor for batch in batches for tensor in batch):
            assert tensor.place == paddle.CPUPlace()
            assert tensor.stop_gradient
        check_epoch(source, arrays_of(batches))


def test_numbers_without_tensors_are_refused(teacher_address: str) -> None:
    for ours, dtype, words in (
        # Paddle's tensors of bfloat16 are made of uint16: 1 would become 9e-41.
        (PaddleLoader, np.uint16, "no tensors of uint16"),
        (PaddleLoader, np.uint32, "no tensors of uint32"),
        (TorchLoader, np.longdouble, "PyTorch has no tensors of"),
    ):
        source = [{"x": np.ones((2, 3), np.float32), "pixels": np.ones(2, dtype)}]
        reader = reader_of(source, teacher_address)
        with reader, pytest.raises(BatchError, match=words):
            list(ours(reader))


@pytest.mark.parametrize("extra", [np.array(["a", "b"]), "text", None, np.arange(2, dtype=">i4")])
def test_values_without_tensors_of_torch_stay(teacher_address: str, extra: Any) -> None:
    source = [{"x": np.ones((2, 6), np.float32), "extra": extra}]
    with reader_of(source, teacher_address) as reader:
        (batch,) = TorchLoader(reader)
    np.testing.assert_array_equal(batch["extra"], extra)


def test_loaders_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="PaddleLoader iterates a DistilReader, not a list"):
        PaddleLoader([1])  # type: ignore[arg-type]
    refused: dict[str, dict[str, Any]] = {
        r"as in feed_list=\['x'\]": {"feed_list": "x"},
        "one rank for each device": {"places": ["cpu", "cpu"]},
        "'moon'": {"places": "moon"},
        "put on 5": {"places": 5},
    }
    with reader_of(Batches(1), NOBODY) as reader:
        for words, options in refused.items():
            with pytest.raises(UsageError, match=words):
                PaddleLoader(reader, **options)


@pytest.mark.parametrize("how", ["stock", "arrays by name"])
def test_a_static_program_is_fed(how: str, teacher_address: str) -> None:
    program = python_command(
        "trainer", "edl.tests.distill_reader.static_graph_program", how, teacher_address
    )
    trainer = start(program)
    try:
        told = trainer.expect(r"fed (\d+) batches, the last of (\d+) classes", timeout_s=DEADLINE_S)
        assert (int(told[1]), int(told[2])) == (200, CLASSES)
        assert trainer.wait(DEADLINE_S) == 0, trainer.tail()
    finally:
        trainer.stop()


def test_a_batch_that_could_not_be_converted_comes_next(
    teacher_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its tensors have no room."""
    with reader_of(Batches(3), teacher_address) as reader:
        iterator = iter(TorchLoader(reader))
        with monkeypatch.context() as full:
            full.setattr("edl.distill_reader.adapters.torch.numbers_of", _no_room)
            with pytest.raises(MemoryError):
                next(iterator)
        batches = list(iterator)
    check_epoch(Batches(3), arrays_of(batches))


def _no_room(leaf: object) -> None:
    raise MemoryError


def test_tensors_are_views(teacher_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [(np.ones((ROWS, 3), np.float32), np.arange(ROWS), np.ones((ROWS, CLASSES), "f4"))]
    with reader_of(Batches(1), teacher_address) as reader:
        monkeypatch.setattr(DistilReader, "iterate", lambda _, convert: map(convert, views))
        (tensors,) = TorchLoader(reader)
    assert [tensor.data_ptr() for tensor in tensors] == [view.ctypes.data for view in views[0]]


def test_memory_is_pinned_on_request(teacher_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Size] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.shape)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with reader_of(Batches(1), teacher_address) as reader:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(UsageError, match=r"needs CUDA.*leave it out"):
            TorchLoader(reader, pin_memory=True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert len(list(TorchLoader(reader, pin_memory=True))) == 1
    assert pinned == [(ROWS, 3), (ROWS,), (ROWS, CLASSES)]


# --- Lightning


class Student(lightning.LightningModule):
    """Keeps the samples that it is trained on, by epoch.

    Saves a checkpoint after the step `save_at`, and has no memory in the epoch `fails_in`.
    """

    def __init__(self, path: Path, save_at: int = -1, fails_in: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, CLASSES)
        self.seen: dict[int, list[int]] = {}
        self._path, self._save_at, self._fails_in = path, save_at, fails_in

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)

    def training_step(self, batch: Any, index: int) -> Any:
        x, ids, soft = batch
        if self.current_epoch == self._fails_in:
            raise MemoryError
        np.testing.assert_array_equal(soft, logits_of(x.numpy()))
        self.seen.setdefault(self.current_epoch, []).extend(ids.tolist())
        return torch.nn.functional.mse_loss(self.layer(x), soft)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step == self._save_at:
            self.trainer.save_checkpoint(self._path)
            self.trainer.should_stop = True


def rows() -> Any:
    return torch.utils.data.DataLoader(Rows(SAMPLES), batch_size=BATCH, shuffle=True)


def trainer_in(folder: Path, **options: Any) -> lightning.Trainer:
    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {**dict.fromkeys(names, False), "default_root_dir": folder, **options}
    return lightning.Trainer(max_epochs=3, min_epochs=0, accelerator="cpu", **options)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, which differ by its versions
def test_lightning_goes_on_in_the_middle_of_an_epoch(teacher_address: str, tmp_path: Path) -> None:
    path = tmp_path / "student.ckpt"
    first, second = Student(path, save_at=7), Student(path)
    with reader_of(rows(), teacher_address) as reader:
        trainer_in(tmp_path).fit(first, TorchLoader(reader))
    assert [len(ids) for ids in first.seen.values()] == [SAMPLES, 2 * BATCH]
    assert sorted(first.seen[0]) == list(range(SAMPLES))
    with reader_of(rows(), teacher_address) as reader:
        trainer_in(tmp_path).fit(second, TorchLoader(reader), ckpt_path=path, weights_only=False)
    both = first.seen[1] + second.seen[1]
    assert sorted(both) == list(range(SAMPLES)), "each sample of the epoch once"
    assert sorted(second.seen[2]) == list(range(SAMPLES))


@pytest.mark.filterwarnings("ignore")
def test_a_data_module_reloads_and_closes_after_an_error(
    teacher_address: str, tmp_path: Path
) -> None:
    """Of steps that accumulate gradients, the statistics are logged once."""
    student = Student(tmp_path, fails_in=2)
    data = DistilDataModule(lambda **ranks: reader_of(rows(), teacher_address, **ranks))
    logger = lightning.loggers.CSVLogger(tmp_path)
    options = {"logger": logger, "callbacks": [ReaderStatsLogger()], "log_every_n_steps": 1}
    options |= {"accumulate_grad_batches": 2, "reload_dataloaders_every_n_epochs": 1}
    with pytest.raises(MemoryError):
        trainer_in(tmp_path, **options).fit(student, datamodule=data)
    assert data.reader is None
    assert student.seen[0] != student.seen[1]
    assert sorted(student.seen[0]) == sorted(student.seen[1])
    with Path(logger.log_dir, "metrics.csv").open() as table:
        rows_logged = [(row["step"], row["reader/teachers"]) for row in csv.DictReader(table)]
    assert rows_logged == [(str(step), "1.0") for step in range(1, 7)]


# --- tensors in batches


@pytest.mark.parametrize(
    "tensor",
    [
        paddle.to_tensor(IMAGE),
        *(torch.from_numpy(IMAGE).to(t) for t in (torch.float32, torch.bfloat16, torch.uint8)),
    ],
)
def test_labels_and_fields_are_read_where_they_lie(tensor: Any) -> None:
    parts, label = take_apart((tensor,)), np.zeros((3, 2), np.float32)
    (array,) = (array.copy() for array in parts.arrays)
    back, soft = put_together(parts.skeleton, [array], {"logits": label})
    assert back.dtype == tensor.dtype
    array[0, 0], label[0, 0] = 70, 80
    assert (float(back[0, 0]), float(soft[0, 0])) == (70, 80)


def test_paddle_bfloat16_travels_as_that_and_comes_back() -> None:
    values = paddle.to_tensor(IMAGE).astype("bfloat16")
    parts = take_apart((values,))
    assert datatype_of(parts.arrays[0].dtype) == "BF16"
    soft = {"logits": parts.arrays[0]}
    for tensor in put_together(parts.skeleton, parts.arrays, soft):
        assert tensor.dtype == paddle.bfloat16
        np.testing.assert_array_equal(tensor.astype("float32").numpy(), IMAGE)


def test_paddle_tensors_come_back_as_paddle_tensors() -> None:
    wanting, plain = paddle.to_tensor(IMAGE, stop_gradient=False), paddle.to_tensor(IMAGE)
    batch = round_trip([wanting, LABEL, plain])
    assert isinstance(batch[1], np.ndarray)
    tensors = [batch[place] for place in (0, 2, 3)]
    assert all(isinstance(tensor, paddle.Tensor) for tensor in tensors), "soft labels too"
    assert [tensor.stop_gradient for tensor in tensors] == [False, True, True]
    assert tensors[0].dtype == paddle.float32


def test_torch_tensors_come_back_as_torch_tensors() -> None:
    wanting, size = torch.ones(2, 3, requires_grad=True), torch.Size((2, 3))
    batch = round_trip([torch.from_numpy(IMAGE), LABEL, {"id": torch.tensor(7)}, wanting, size])
    assert torch.equal(batch[0], torch.from_numpy(IMAGE))
    assert isinstance(batch[1], np.ndarray)
    assert batch[2]["id"].item() == 7
    assert type(batch[4]) is torch.Size
    assert isinstance(batch[5], torch.Tensor), "soft labels follow the framework of the batch"
    assert [batch[place].requires_grad for place in (0, 3, 5)] == [False, True, False]


@pytest.mark.parametrize(
    "name", ["bfloat16", "float16", "float64", "uint8", "uint16", "int64", "bool", "complex64"]
)
def test_each_dtype_of_torch_comes_back(name: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name)).t()  # not contiguous either
    (array,) = take_apart((tensor,)).arrays
    assert name != "bfloat16" or datatype_of(array.dtype) == "BF16"
    back = round_trip((tensor,))[0]
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_a_packed_sequence_inside_a_batch_stays_one() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(4), torch.arange(2)])
    back = round_trip({"image": IMAGE, "words": packed})["words"]
    assert isinstance(back, torch.nn.utils.rnn.PackedSequence)
    assert torch.equal(back.data, packed.data)
    assert torch.equal(back.batch_sizes, packed.batch_sizes)


def test_torch_tensors_that_numpy_cannot_hold_are_refused() -> None:
    for tensor in (torch.eye(3).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(BatchError, match="to_dense"):
            take_apart((tensor,))
    with pytest.raises(BatchError, match="float8_e5m2 cannot be sent"):
        take_apart((torch.ones(2, dtype=torch.float8_e5m2),))
