"""Losses of distillation, for tensors of Paddle or PyTorch; importing this is light.

`terms` has the terms, `step` the weighted sum of those of a job, and `distill_loss` the loss for
training loops of your own.
"""

from .distill_loss import DistillLoss
from .terms import smoothed_cross_entropy

__all__ = ["DistillLoss", "smoothed_cross_entropy"]
