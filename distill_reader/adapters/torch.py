"""`TorchLoader`: a reader as the iterable that training loops of PyTorch expect."""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from ..reader import DistilReader
from ..structure import map_leaves
from .loader import Loader, numbers_of
from .tensors import TorchKind


class TorchLoader(Loader):
    """Yields the batches of `reader` with tensors of PyTorch in the place of numpy arrays.

    It goes where a `torch.utils.data.DataLoader` goes: into a loop of one's own, as
    `train_dataloaders` into Lightning's `Trainer.fit`, out of `get_train_dataloader` of
    `transformers.Trainer`. It is no DataLoader and has no sampler, so none of them exchanges that.

    Tensors are of the reader's own memory, without a copy: that is given back when the last tensor
    that views it is gone. What the source yields as tensors comes back on its device anyway, with
    or without this; text, numbers and None stay what they are.

    Args:
        reader: what it iterates.
        pin_memory: copy tensors into page-locked memory, from where `tensor.to(device,
            non_blocking=True)` runs beside the computing.

    Raises:
        UsageError: memory is to be pinned where PyTorch sees no CUDA device.
    """

    def __init__(self, reader: DistilReader, *, pin_memory: bool = False) -> None:
        import torch

        if pin_memory and not torch.cuda.is_available():
            raise UsageError(
                "pin_memory=True needs CUDA, and PyTorch sees no such device here; leave it out"
            )
        super().__init__(reader)
        self.pin_memory = pin_memory
        self._tensor_class = torch.Tensor

    def _converted(self, batch: Any) -> Any:
        return map_leaves(batch, self._leaf)

    def _leaf(self, leaf: Any) -> Any:
        if (array := numbers_of(leaf)) is not None:
            leaf = TorchKind().tensor(array)
        if not self.pin_memory or not isinstance(leaf, self._tensor_class):
            return leaf
        return leaf.pin_memory() if leaf.device.type == "cpu" else leaf
