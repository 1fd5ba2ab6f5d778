"""A student in Lightning with soft labels of an ONNX classifier.

edl coordinator serve
python examples/digits_onnx.py digits.onnx
edl-teacher serve --model digits.onnx --service digits --redis redis://127.0.0.1:6379
python examples/digits_lightning.py redis://127.0.0.1:6379
"""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning as lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from edl.distill_reader import DistilReader
from edl.integrations.lightning import DistilDataModule, ReaderStatsLogger
from edl.student import DistillLoss


class Student(lightning.LightningModule):
    """One layer: float32 pixels [N, 64] -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.loss = DistillLoss(alpha=0.3, beta=0.7, temperature=4.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2)

    def training_step(self, batch: Any, _: int) -> Any:
        pixels, label, soft_label = batch
        logits = self.layer(pixels)
        accuracy = (logits.argmax(-1) == label).float().mean()
        self.log("accuracy", accuracy, on_step=False, on_epoch=True)
        return self.loss(logits, label, soft_label)


def main(coordinator: str) -> None:
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    batches = DataLoader(
        TensorDataset(pixels, torch.tensor(digits.target)), batch_size=64, shuffle=True
    )
    data = DistilDataModule(
        lambda **ranks: DistilReader(
            batches, service="digits", coordinator=coordinator, uneven="drop", **ranks
        )
    )
    trainer = lightning.Trainer(
        max_epochs=10,
        accelerator="cpu",
        callbacks=[ReaderStatsLogger()],
        logger=lightning.loggers.CSVLogger("."),
        enable_progress_bar=False,
    )
    trainer.fit(Student(), datamodule=data)
    print(f"Lightning: accuracy {trainer.callback_metrics['accuracy']:.2f}")


main(sys.argv[1])
