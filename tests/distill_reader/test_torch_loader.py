"""The reader in training loops of PyTorch: its DataLoader, its tensors, Lightning's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch

from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.torch import TorchLoader
from edl.distill_reader.structure import put_together, take_apart
from edl.errors import BatchError, UsageError
from edl.proto.datatypes import datatype_of
from edl.tests.distill_reader.readers import ROWS, Batches, check_epoch, reader_of
from edl.tests.distill_reader.test_structure import IMAGE, LABEL, round_trip
from edl.tests.scripted_teacher import CLASSES, logits_of

pytestmark = pytest.mark.system

SAMPLES, BATCH = 37, 8


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]  # PyTorch is not looked into
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((6,), float(index)), "id": index, "name": str(index)}


@pytest.mark.parametrize("workers", [0, 2])
def test_three_epochs_of_a_stock_dataloader(teacher_address: str, workers: int) -> None:
    stock = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, num_workers=workers, shuffle=True)
    with reader_of(stock, teacher_address) as reader:
        loader = TorchLoader(reader)
        assert len(loader) == len(stock) == 5
        for _ in range(3):
            seen: list[int] = []
            for batch in loader:
                assert list(batch) == ["x", "id", "name", "logits"]
                assert batch["name"] == [str(number) for number in batch["id"].tolist()]
                assert torch.equal(batch["x"][:, 0], batch["id"].float())
                assert batch["logits"].dtype == torch.float32
                np.testing.assert_array_equal(batch["logits"], logits_of(batch["x"].numpy()))
                seen += batch["id"].tolist()
            assert sorted(seen) == list(range(SAMPLES))


def test_a_batch_that_could_not_be_converted_comes_next(
    teacher_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its tensors have no room."""
    with reader_of(Batches(3), teacher_address) as reader:
        loader = TorchLoader(reader)
        iterator = iter(loader)
        with monkeypatch.context() as full:
            full.setattr("edl.distill_reader.adapters.torch.numbers_of", _no_room)
            with pytest.raises(MemoryError):
                next(iterator)
        batches = list(iterator)
    check_epoch(Batches(3), [tuple(tensor.numpy() for tensor in batch) for batch in batches])


def _no_room(leaf: object) -> None:
    raise MemoryError


def test_tensors_are_views(teacher_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [(np.ones((ROWS, 3), np.float32), np.arange(ROWS), np.ones((ROWS, CLASSES), "f4"))]
    with reader_of(Batches(1), teacher_address) as reader:
        monkeypatch.setattr(DistilReader, "iterate", lambda _, convert: map(convert, views))
        (tensors,) = TorchLoader(reader)
    assert [tensor.data_ptr() for tensor in tensors] == [view.ctypes.data for view in views[0]]


def test_kept_tensors_stay_what_they_were(teacher_address: str) -> None:
    source = Batches(200, shape=(64,))
    with reader_of(source, teacher_address, upper_bytes=20_000) as reader:
        kept = list(TorchLoader(reader))
    check_epoch(source, [tuple(tensor.numpy() for tensor in batch) for batch in kept])


@pytest.mark.parametrize("extra", [np.array(["a", "b"]), "text", None, np.arange(2, dtype=">i4")])
def test_values_without_tensors_of_torch_stay(teacher_address: str, extra: Any) -> None:
    x = np.ones((2, 6), np.float32)
    source = [{"x": x, "extra": extra}, {"x": x, "extra": np.ones(2, np.longdouble)}]
    with reader_of(source, teacher_address) as reader:
        batches = iter(TorchLoader(reader))
        np.testing.assert_array_equal(next(batches)["extra"], extra)
        with pytest.raises(BatchError, match="no such tensors"):
            next(batches)


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


class Student(lightning.LightningModule):
    """Keeps the samples that it is trained on, by epoch; saves a checkpoint after `save_at`."""

    def __init__(self, save_at: int = 0, path: Path | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, CLASSES)
        self.seen: dict[int, list[int]] = {}
        self._save_at = save_at
        self._path = path

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)

    def training_step(self, batch: Any, index: int) -> Any:
        np.testing.assert_array_equal(batch["logits"], logits_of(batch["x"].numpy()))
        self.seen.setdefault(self.current_epoch, []).extend(batch["id"].tolist())
        return torch.nn.functional.mse_loss(self.layer(batch["x"]), batch["logits"])

    def on_train_batch_end(self, *_: Any) -> None:
        if self._path is not None and self.global_step == self._save_at:
            self.trainer.save_checkpoint(self._path)
            self.trainer.should_stop = True


def trainer_at(folder: Path) -> Any:
    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet: dict[str, Any] = dict.fromkeys(names, False)
    return lightning.Trainer(
        max_epochs=3,
        min_epochs=0,
        accelerator="cpu",
        default_root_dir=folder,
        **quiet,
    )


def shuffled() -> Any:
    return torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, which differ by its versions
def test_lightning_goes_on_in_the_middle_of_an_epoch(teacher_address: str, tmp_path: Path) -> None:
    path = tmp_path / "student.ckpt"
    first, second = Student(save_at=7, path=path), Student()
    with reader_of(shuffled(), teacher_address) as reader:
        trainer_at(tmp_path).fit(first, train_dataloaders=TorchLoader(reader))
    assert [len(ids) for ids in first.seen.values()] == [SAMPLES, 2 * BATCH]
    assert sorted(first.seen[0]) == list(range(SAMPLES))
    with reader_of(shuffled(), teacher_address) as reader:
        trainer_at(tmp_path).fit(
            second, train_dataloaders=TorchLoader(reader), ckpt_path=path, weights_only=False
        )
    both = first.seen[1] + second.seen[1]
    assert sorted(both) == list(range(SAMPLES)), "each sample of the epoch once"
    assert sorted(second.seen[2]) == list(range(SAMPLES))


# --- tensors of PyTorch in batches


def test_torch_tensors_come_back_as_torch_tensors() -> None:
    wanting, size = torch.ones(2, 3, requires_grad=True), torch.Size((2, 3))
    batch = round_trip([torch.from_numpy(IMAGE), LABEL, {"id": torch.tensor(7)}, wanting, size])
    assert torch.equal(batch[0], torch.from_numpy(IMAGE))
    assert isinstance(batch[1], np.ndarray)
    assert batch[2]["id"].item() == 7
    assert type(batch[4]) is torch.Size
    assert isinstance(batch[5], torch.Tensor), "soft labels follow the framework of the batch"
    assert [batch[place].requires_grad for place in (0, 3, 5)] == [False, True, False]


def test_torch_reads_labels_and_fields_where_they_lie() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        parts, label = take_apart((torch.ones(3, 2, dtype=dtype),)), np.ones((3, 2), np.float32)
        (array,) = parts.arrays
        tensor, soft = put_together(parts.skeleton, [array], {"logits": label})
        assert tensor.dtype == dtype
        assert tensor.data_ptr() == array.ctypes.data
        assert soft.data_ptr() == label.ctypes.data


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
    with pytest.raises(BatchError, match="float8_e5m2 cannot travel"):
        take_apart((torch.ones(2, dtype=torch.float8_e5m2),))
