"""Requests whose inputs stay in shared memory, which differ in number and place alone.

Such a request is a few hundred bytes, and to make it takes longer than to send it. So the message
is kept, and what differs from one to the next is written into it.
"""

from __future__ import annotations

from collections.abc import Collection

from . import inference_pb2 as pb
from .lent_arena import Lent
from .places import GENERATION, GENERATION_BYTES, GENERATION_OFFSET, OFFSET


class Prepared:
    """A `ModelInferRequest` to be sent again and again. Used by one thread.

    Args:
        kind: of which requests it is; see `kind`.
        message: one of them, serialised; each of its inputs names a place with a generation.
    """

    def __init__(self, kind: object, message: bytes) -> None:
        self.kind = kind
        self._message = pb.ModelInferRequest.FromString(message)
        self._places = []
        for tensor in self._message.inputs:
            named = tensor.parameters
            apart = named.get(GENERATION_OFFSET)
            self._places.append((named[OFFSET], named[GENERATION], apart))

    def message(self, request_id: str, lying: Collection[Lent]) -> bytes:
        """The request of this id, serialised, with its inputs elsewhere in the same region.

        Args:
            request_id: comes back in the response.
            lying: where each input lies, in the order of the inputs; its generation stands right
                before it if that was so in the first message.
        """
        self._message.id = request_id
        for (at, stamp, apart), lent in zip(self._places, lying, strict=True):
            at.int64_param, stamp.int64_param = lent.offset, lent.generation
            if apart is not None:
                apart.int64_param = lent.generation_offset
        return self._message.SerializeToString()


def is_led(lent: Lent) -> bool:
    """Whether its generation stands right before what is lent."""
    return lent.generation_offset == lent.offset - GENERATION_BYTES
