"""Hugging Face Accelerate: a loader with soft labels; Accelerate's checkpoints have its state."""

from __future__ import annotations

from typing import Any

from accelerate.utils import send_to_device

from .ranks import MakeReader, RankedLoader, check_even


class AcceleratedLoader(RankedLoader):
    """Yields this process's labelled batches on the accelerator's device.

    Do not pass the loader to `accelerator.prepare`, which would divide the batches again. Create it
    before `accelerator.load_state`.

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
        accelerator.register_for_checkpointing(self)

    def _converted(self, batch: Any) -> Any:
        return send_to_device(super()._converted(batch), self._device, non_blocking=True)
