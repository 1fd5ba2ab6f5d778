"""A student in a Trainer of transformers with soft labels of an ONNX classifier.

edl coordinator serve
python examples/digits_onnx.py digits.onnx
edl-teacher serve --model digits.onnx --service digits --redis redis://127.0.0.1:6379
python examples/digits_transformers.py redis://127.0.0.1:6379
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments

from edl.distill_reader import DistilReader
from edl.integrations.transformers import DistilTrainerMixin
from edl.student import DistillLoss


class Student(torch.nn.Module):  # type: ignore[misc]  # mypy skips torch
    """One layer: float32 pixels [N, 64] -> loss, logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, pixels: Any, labels: Any) -> dict[str, Any]:
        logits = self.layer(pixels)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class DistilTrainer(DistilTrainerMixin, Trainer):  # type: ignore[misc]
    pass


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": (predicted.predictions.argmax(-1) == predicted.label_ids).mean()}


def main(coordinator: str) -> None:
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    rows = [
        {"pixels": row, "labels": label} for row, label in zip(pixels, digits.target, strict=True)
    ]
    trainer = DistilTrainer(
        Student(),
        TrainingArguments(
            "trained",
            num_train_epochs=10,
            per_device_train_batch_size=64,
            learning_rate=1e-2,
            save_steps=100,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=accuracy,
        make_reader=lambda loader, **ranks: DistilReader(
            loader, service="digits", coordinator=coordinator, uneven="drop", **ranks
        ),
        distill_loss=DistillLoss(alpha=0.3, beta=0.7, temperature=4.0),
        soft_label="prob",
    )
    trainer.train()
    print(f"transformers: accuracy {trainer.evaluate()['eval_accuracy']:.2f}")


main(sys.argv[1])
