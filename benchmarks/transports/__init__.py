"""Transports: ways for a batch to reach a teacher and for a reply to come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy as np

from ...proto.arena import Array
from ...proto.security.credentials import TlsFiles

HOST: Final = "127.0.0.1"
#: Shape of a batch of images.
SHAPE: Final = (32, 3, 224, 224)
#: Requests in flight, each from its own thread.
IN_FLIGHT: Final = 2
#: Shape of a reply: logits of 32 samples.
REPLY_SHAPE: Final = (32, 1000)
_PAGE: Final = 4096

#: Sends one request and receives its reply. The argument is the number of the calling thread.
SendRequest = Callable[[int], None]


class Serve(Protocol):
    def __call__(self, batch: Array, tls: TlsFiles | None) -> int:
        """Start a server in its own threads; return the port.

        Args:
            batch: a batch of the dtype and shape of later requests.
            tls: a self-signed certificate with its key; None: no TLS.
        """


class Connect(Protocol):
    def __call__(self, port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
        """Connect to the server; return a function that sends `batch`."""


class Transport(NamedTuple):
    """The server and the client of a transport."""

    serve: Serve
    connect: Connect


def reply() -> Array:
    """Return the reply to every batch, float32 [32, 1000]."""
    return np.ones(REPLY_SHAPE, np.float32)


def read_pages(batch: Array) -> None:
    """Read one byte of each page of a batch, in place of a model.

    A real model reads all bytes. This touches all the memory and costs little, so nearly all the
    measured time is that of the transport.
    """
    int(batch.reshape(-1).view(np.uint8)[::_PAGE].sum())
