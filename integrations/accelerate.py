"""Hugging Face Accelerate: a loader with soft labels; Accelerate's checkpoints have its state."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Any

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import send_to_device

from .ranks import MakeReader, RankedLoader, check_even


class AcceleratedLoader(RankedLoader, DataLoaderStateMixin):  # type: ignore[misc]
    """Yields this process's labelled batches on the accelerator's device.

    Do not pass the loader to `accelerator.prepare`, which would divide the batches again. Create it
    before `accelerator.load_state`. `accelerator.accumulate` steps after the last batch of an
    epoch, unless the source has no length or the number of ranks has changed in the epoch.

    Args:
        accelerator: an `accelerate.Accelerator`. Its `save_state` and `load_state` include the
            states of the readers of all ranks.
        make_reader: creates the reader, as in `lambda **ranks: DistilReader(source, service=...,
            uneven="drop", **ranks)`.

    Raises:
        UsageError: `uneven` of the reader is "keep", and there are several ranks.
    """

    def __init__(self, accelerator: Any, make_reader: MakeReader) -> None:
        reader = make_reader(rank=accelerator.process_index, world_size=accelerator.num_processes)
        super().__init__(reader, pin_memory=accelerator.device.type == "cuda")
        check_even(reader)
        self._device = accelerator.device
        self.gradient_state = accelerator.gradient_state  # used by begin() and end()
        accelerator.register_for_checkpointing(self)

    def __iter__(self) -> Iterator[Any]:
        """Begin a new epoch; the current epoch ends."""
        batches = super().__iter__()
        state = self.reader.state_dict()
        left = length_hint(self) - state["batches"] - len(state["ahead"])  # <= 0: unknown
        self.begin()
        try:
            for batch in batches:
                left -= 1
                self.end_of_dataloader = left == 0
                yield batch
        finally:
            self.end()

    def _converted(self, batch: Any) -> Any:
        return send_to_device(super()._converted(batch), self._device, non_blocking=True)
