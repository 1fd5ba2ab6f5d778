"""Lanes: ways for a batch to reach a teacher, each a module with a server and a client."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, Protocol, cast

import numpy as np

from ...proto.arena import Array
from ...proto.security import TlsFiles

HOST: Final = "127.0.0.1"
#: Requests in flight, each from its own thread.
IN_FLIGHT: Final = 2
#: Shape of a reply: logits of 32 samples.
REPLY_SHAPE: Final = (32, 1000)
_PAGE: Final = 4096

#: Sends one request and receives its reply. The argument is the number of the calling thread.
Ask = Callable[[int], None]


class Lane(Protocol):
    """The functions of a module of this package."""

    def serve(self, batch: Array, tls: TlsFiles | None = None) -> int:
        """Start a server in its own threads; return the port.

        Args:
            batch: a batch of the dtype and shape of later requests.
            tls: a self-signed certificate with its key; None: no TLS.
        """

    def connect(self, port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
        """Connect to the server; return a function that sends `batch`."""


def lane(name: str) -> Lane:
    """Import the lane `name`."""
    return cast(Lane, importlib.import_module(f".{name}", __package__))


def batch_of(size: int) -> Array:
    """Return a float32 batch of `size` bytes; `size` must be a multiple of 128."""
    return np.arange(size // 4, dtype=np.float32).reshape(REPLY_SHAPE[0], -1)


def reply() -> Array:
    """Return the reply to every batch, float32 [32, 1000]."""
    return np.ones(REPLY_SHAPE, np.float32)


def look_at(batch: Array) -> None:
    """Read one byte of each page, as any model must; the transport takes all other time."""
    int(batch.reshape(-1).view(np.uint8)[::_PAGE].sum())
