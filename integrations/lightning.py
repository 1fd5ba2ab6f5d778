"""Lightning: a data module with soft labels, and a callback that logs the reader's statistics."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from ..distill_reader.reader import DistilReader
from ..runtime.errors import UsageError
from .ranks import MakeReader, TrainerLoader

#: Lightning is published as two packages; classes of one do not work with those of the other.
_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    """Import one of the packages; prefer a package that the program has already imported."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    raise ImportError("Lightning is not installed: pip install lightning")


_pl = _lightning()


class DistilDataModule(_pl.LightningDataModule):  # type: ignore[misc,name-defined]
    """Training batches with soft labels; each process of the trainer has a reader of its own.

    A checkpoint contains the states of the readers of all ranks: a run that continues from it
    trains each remaining sample of the epoch once, with the same or another number of ranks. Add
    `val_dataloader` in a subclass or in your LightningModule.

    Args:
        make_reader: creates the reader, as in `lambda **ranks: DistilReader(source, service=...,
            uneven="drop", **ranks)`. Called in each process when training begins, and every
            `reload_dataloaders_every_n_epochs` of the trainer.
        pin_memory: as in `TorchLoader`.

    Attributes:
        reader: this process's reader while a trainer runs, else None.
    """

    def __init__(self, make_reader: MakeReader, *, pin_memory: bool = False) -> None:
        super().__init__()
        self.reader: DistilReader | None = None
        self._make_reader = make_reader
        self._pin_memory = pin_memory

    def train_dataloader(self) -> TrainerLoader:
        """Create this process's reader, and return a loader of its batches.

        Raises:
            UsageError: see `TrainerLoader`.
        """
        self.teardown()
        self.reader = self._make_reader(
            rank=self.trainer.global_rank, world_size=self.trainer.world_size
        )
        if epoch := self.trainer.current_epoch:  # a reload; a checkpoint's state is loaded later
            self.reader.load_state_dict({**self.reader.state_dict(), "epoch": epoch})
        return TrainerLoader(self.reader, pin_memory=self._pin_memory)

    def teardown(self, stage: str = "") -> None:
        """Close the reader."""
        if self.reader is not None:
            self.reader.close()
        self.reader = None

    def on_exception(self, exception: BaseException) -> None:
        """Close the reader; Lightning does not call `teardown` then."""
        self.teardown()


class ReaderStatsLogger(_pl.Callback):  # type: ignore[misc,name-defined]
    """Logs statistics of a `DistilDataModule`'s reader every `log_every_n_steps` of the trainer.

    The values are `reader/teachers` and `reader/wanted` (numbers of present and wanted teachers),
    `reader/ready` (labelled batches that wait for training), and `reader/starved_s` (seconds that
    training has waited for labels). `ReaderStats` describes them.
    """

    _logged_step = 0  # or the step in which training began

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not isinstance(trainer.datamodule, DistilDataModule):
            raise UsageError("ReaderStatsLogger needs a DistilDataModule: trainer.fit(datamodule=)")
        self._logged_step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        step, interval_steps = trainer.global_step, trainer.log_every_n_steps
        # Batches of which the gradients are accumulated do not change the step.
        if not interval_steps or step % interval_steps or step == self._logged_step:
            return
        self._logged_step = step
        stats = trainer.datamodule.reader.stats
        values = {
            "reader/teachers": float(len(stats.teachers)),
            "reader/wanted": float(stats.want),
            "reader/ready": float(stats.ready),
            "reader/starved_s": stats.starved_s,
        }
        for logger in trainer.loggers:
            logger.log_metrics(dict(values), step=step)
