"""The student's side of distillation: job files, losses, training loops. Imports no framework."""

from ..scheduler.students.weights import Cosine, Linear, Steps
from .job.distill import Distill, Hint
from .job.spec import JobSpec, load_job
from .losses import DistillLoss, smoothed_cross_entropy
from .trainer import StepReport, Trainer, TrainResult, accuracy

__all__ = [
    "Cosine",
    "Distill",
    "DistillLoss",
    "Hint",
    "JobSpec",
    "Linear",
    "StepReport",
    "Steps",
    "TrainResult",
    "Trainer",
    "accuracy",
    "load_job",
    "smoothed_cross_entropy",
]
