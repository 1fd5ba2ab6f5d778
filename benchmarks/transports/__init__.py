"""Ways for a batch to reach a teacher: each lane with its server and its client, side by side."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, Protocol, cast

import numpy as np

from ...proto.arena import Array
from ...proto.security import TlsFiles

HOST: Final = "127.0.0.1"
#: Requests on their way at once.
IN_FLIGHT: Final = 2
#: What a teacher answers a batch with: logits of 32 samples.
REPLY_SHAPE: Final = (32, 1000)
_PAGE: Final = 4096

#: Sends one request and takes its answer; the argument tells the threads that call it apart.
Ask = Callable[[int], None]


class Lane(Protocol):
    """A module of this package."""

    def serve(self, batch: Array, tls: TlsFiles | None = None) -> int:
        """Answer from now on, on threads of its own; returns the port.

        Args:
            batch: as those that will come.
            tls: a certificate that signs itself, with its key; None: no TLS.
        """

    def connect(self, port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
        """What sends `batch`."""


def lane(name: str) -> Lane:
    """The lane of that name."""
    return cast(Lane, importlib.import_module(f".{name}", __package__))


def batch_of(size: int) -> Array:
    """A batch of `size` bytes."""
    return np.arange(size // 4, dtype=np.float32).reshape(REPLY_SHAPE[0], -1)


def reply() -> Array:
    """The answer to every batch."""
    return np.ones(REPLY_SHAPE, np.float32)


def look_at(batch: Array) -> None:
    """Touch each page, as a model would at least; all else of the time is the transport's."""
    int(batch.reshape(-1).view(np.uint8)[::_PAGE].sum())
