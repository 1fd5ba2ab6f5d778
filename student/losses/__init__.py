"""Losses of distillation, for tensors of Paddle or PyTorch. Importing this package imports neither.

`terms` has the terms, `step` the weighted sum of a job's terms, and `distill_loss` the loss for
your own training loops.
"""

from .distill_loss import DistillLoss
from .terms import smoothed_cross_entropy

__all__ = ["DistillLoss", "smoothed_cross_entropy"]
