"""The reader in training loops of PyTorch: its DataLoader, its tensors, Lightning's Trainer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch

from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.torch import TorchLoader
from edl.errors import BatchError, UsageError
from edl.supervise import python_command, start
from edl.tests.distill_reader.readers import ROWS, Batches
from edl.tests.scripted_teacher import CLASSES, logits_of

SAMPLES, BATCH = 37, 8


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A teacher in a process of its own: DataLoader forks this one, which gRPC must not see."""
    teacher = start(python_command("teacher", "edl.tests.scripted_teacher"))
    yield teacher.expect(r"ready on (\S+)", timeout_s=30).group(1)
    teacher.stop()


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]  # PyTorch is not looked into
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((6,), float(index)), "id": index, "name": str(index)}


def reader_of(source: Any, address: str, **options: Any) -> DistilReader:
    return DistilReader(source, service="s", teachers=[address], **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_three_epochs_of_a_stock_dataloader(address: str, workers: int) -> None:
    stock = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, num_workers=workers, shuffle=True)
    with reader_of(stock, address) as reader:
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


def test_arrays_become_tensors_of_the_readers_own_memory(address: str) -> None:
    source = Batches(3)
    with reader_of(source, address) as reader:
        views = []
        reader_batches = iter(reader)
        loader = TorchLoader(reader)
        for view in reader_batches:
            views.append(view)
            x, ids, soft = loader._converted(view)
            assert (x.data_ptr(), ids.data_ptr(), soft.data_ptr()) == tuple(
                array.ctypes.data for array in view
            )
            assert soft.shape == (ROWS, CLASSES)
        assert len(views) == 3


def test_kept_tensors_stay_what_they_were_and_give_their_memory_back(address: str) -> None:
    source = Batches(200, shape=(64,))
    with reader_of(source, address, upper_bytes=20_000) as reader:
        kept = list(TorchLoader(reader))
        for x, ids, soft in kept:
            np.testing.assert_array_equal(x, source.at(int(ids[0])))
            np.testing.assert_array_equal(soft, logits_of(x.numpy()))
        ring = reader._pipeline._ring
        assert ring.arena.used_bytes > 200 * ROWS * 64 * 4
        del kept, x, ids, soft
        gc.collect()
        ring.reclaim()
        assert ring.arena.used_bytes == 0


def test_what_torch_has_no_tensor_for(address: str) -> None:
    class Odd:
        def __init__(self, extra: Any) -> None:
            self.extra = extra

        def __iter__(self) -> Iterator[Any]:
            yield {"x": np.ones((2, 6), np.float32), "extra": self.extra}

    big_endian = np.arange(2, dtype=">i4")
    for extra in (np.array(["a", "b"]), "text", None):
        with reader_of(Odd(extra), address) as reader:
            (batch,) = TorchLoader(reader)
            np.testing.assert_array_equal(batch["extra"], extra)
    with reader_of(Odd(big_endian), address) as reader:
        (batch,) = TorchLoader(reader)
        assert batch["extra"].tolist() == [0, 1]
    with (
        reader_of(Odd(np.ones(2, np.longdouble)), address) as reader,
        pytest.raises(BatchError, match="no such tensors"),
    ):
        list(TorchLoader(reader))


def test_memory_is_pinned_where_that_is_asked_for(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[torch.Size] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.shape)
        return tensor.clone()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with reader_of(Batches(1), address) as reader:
        assert len(list(TorchLoader(reader, pin_memory=True))) == 1
    assert pinned == [(ROWS, 3), (ROWS,), (ROWS, CLASSES)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_pinning_without_cuda_is_refused_with_what_to_do(address: str) -> None:
    with (
        reader_of(Batches(1), address) as reader,
        pytest.raises(UsageError, match=r"needs CUDA.*leave it out"),
    ):
        TorchLoader(reader, pin_memory=True)


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
    return lightning.Trainer(
        max_epochs=3,
        min_epochs=0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def shuffled() -> Any:
    return torch.utils.data.DataLoader(Rows(), batch_size=BATCH, shuffle=True)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, which differ by its versions
def test_lightning_trains_on_it(address: str, tmp_path: Path) -> None:
    student, trainer = Student(), trainer_at(tmp_path)
    with reader_of(shuffled(), address) as reader:
        trainer.fit(student, train_dataloaders=TorchLoader(reader))
        assert reader.stats.delivered == 15
    assert trainer.global_step == 15
    assert list(student.seen) == [0, 1, 2]
    assert all(sorted(ids) == list(range(SAMPLES)) for ids in student.seen.values())


@pytest.mark.filterwarnings("ignore")
def test_lightning_goes_on_in_the_middle_of_an_epoch(address: str, tmp_path: Path) -> None:
    path = tmp_path / "student.ckpt"
    first, second = Student(save_at=7, path=path), Student()
    with reader_of(shuffled(), address) as reader:
        trainer_at(tmp_path).fit(first, train_dataloaders=TorchLoader(reader))
    assert [len(ids) for ids in first.seen.values()] == [SAMPLES, 2 * BATCH]
    with reader_of(shuffled(), address) as reader:
        trainer_at(tmp_path).fit(
            second, train_dataloaders=TorchLoader(reader), ckpt_path=path, weights_only=False
        )
    both = first.seen[1] + second.seen[1]
    assert sorted(both) == list(range(SAMPLES)), "each sample of the epoch once"
    assert sorted(second.seen[2]) == list(range(SAMPLES))
