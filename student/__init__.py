"""The student's side of distillation: its loss and its training loop. Importing it is light."""

from .loss import DistillLoss
from .trainer import StepReport, Trainer, TrainResult, accuracy

__all__ = ["DistillLoss", "StepReport", "TrainResult", "Trainer", "accuracy"]
