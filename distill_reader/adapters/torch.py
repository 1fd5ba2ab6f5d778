"""`TorchLoader`: the batches of a reader for training loops of PyTorch."""

from __future__ import annotations

from typing import Any

from ...runtime.errors import UsageError
from ..reader import DistilReader
from ..structure import map_leaves
from .loader import Loader, numbers_of
from .tensors import TorchKind


class TorchLoader(Loader):
    """Yields the batches of `reader` with numpy arrays converted to tensors of PyTorch.

    It can replace a `torch.utils.data.DataLoader`: in your own loop, as `train_dataloaders` of
    Lightning's `Trainer.fit`, or returned by `get_train_dataloader` of `transformers.Trainer`. It
    is not a DataLoader and has no sampler, because these trainers would replace the sampler.

    Without `pin_memory`, tensors on the CPU share the reader's memory, unless their array has a
    foreign byte order. The memory is reused after the last tensor is dropped. Tensors of the source
    are returned on their device, with or without this loader. Text, numbers and None are not
    changed.

    Args:
        reader: the reader.
        pin_memory: copy tensors to page-locked memory, from where `tensor.to(device,
            non_blocking=True)` overlaps with computation.

    Raises:
        UsageError: `pin_memory` without a CUDA device, or `reader` is not a DistilReader.
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
        return map_leaves(batch, self._converted_leaf)

    def _converted_leaf(self, leaf: Any) -> Any:
        if (array := numbers_of(leaf)) is not None:
            leaf = TorchKind().tensor(array)
        if not self.pin_memory or not isinstance(leaf, self._tensor_class):
            return leaf
        return leaf.pin_memory() if leaf.device.type == "cpu" else leaf
