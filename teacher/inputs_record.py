"""The inputs of one request in the predictors' memory, given back once nobody reads them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ..proto.arena import Arena, Array, Layouts


class InputsRecord:
    """Room for the inputs of one request.

    Args:
        memory: the predictors'.
        layouts: dtype and shape of each input.

    Attributes:
        arrays: the inputs, to be filled.
        refs: where they lie in `memory`.

    Raises:
        OSError: there is no memory.
    """

    def __init__(self, memory: Arena, layouts: Layouts) -> None:
        self._memory = memory
        self._record = memory.allocate(layouts)
        self._is_taken_care_of = False
        self.refs = self._record.arrays
        self.arrays: list[Array] = [memory.get(ref) for ref in self.refs]

    def submitted(self, labels: Future[Any]) -> None:
        """A predictor may read them until `labels` are there, whether or not anybody waits."""
        self._is_taken_care_of = True
        labels.add_done_callback(self._free)

    def close(self) -> None:
        """The request is over. Idempotent; by the thread that calls `submitted`."""
        if not self._is_taken_care_of:
            self._is_taken_care_of = True
            self._free()

    def _free(self, _: object = None) -> None:
        self._memory.free(self._record.offset)
