"""Losses of distillation, for tensors of Paddle or PyTorch; importing this is light.

`terms` has the terms; `step` puts those of a job together, with their weights; `distill_loss` is
the loss for training loops of one's own.
"""

from .distill_loss import DistillLoss
from .terms import smoothed_cross_entropy

__all__ = ["DistillLoss", "smoothed_cross_entropy"]
