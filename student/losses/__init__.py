"""Losses of distillation, for tensors of Paddle or PyTorch; importing this is light.

Each module has one term: `kl`, `mse`, `top_k`, `features`, `smoothing`. `step` puts the terms of a
job together, with their weights; `distill_loss` is the loss for training loops of one's own.
"""

from .distill_loss import DistillLoss
from .smoothing import smoothed_cross_entropy

__all__ = ["DistillLoss", "smoothed_cross_entropy"]
