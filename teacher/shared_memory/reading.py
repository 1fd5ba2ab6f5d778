"""What one request reads of its caller's memory: in place where that can be, else as a copy."""

from __future__ import annotations

from ...proto.lent_arena import Place
from ...proto.tensors import Heavy
from .regions import SharedMemory
from .segment import Segment
from .visitors import Visitor


class Reading:
    """The inputs of one request; they must not be used for an answer unless `check` passes.

    Args:
        memory: the regions of all callers.
        visitor: whose request it is.
    """

    def __init__(self, memory: SharedMemory, visitor: Visitor) -> None:
        self._memory = memory
        self._visitor = visitor
        self._in_place: list[tuple[Segment, Place]] = []

    def read(self, place: Place) -> memoryview:
        """What lies at `place`; raises what `SharedMemory.read` does."""
        try:
            return self.read_in_place(place)
        except Heavy:
            return self._memory.read(self._visitor, place)

    def read_in_place(self, place: Place) -> memoryview:
        """The same for an event loop; raises Heavy where it has to be copied."""
        segment = self._memory.holding(self._visitor, place)
        if (data := segment.read_in_place(place)) is None:
            raise Heavy
        self._in_place.append((segment, place))
        return data

    def check(self) -> None:
        """To be called when the inputs have been used.

        Raises:
            RetryableError: one was read in place, and belongs to another request by now.
        """
        for segment, place in self._in_place:
            segment.check(place)
