"""The least that a reader does with a teacher of another host: copy each batch, and send the copy.

The trainer has to copy, because another process sends. The copy goes over a plain socket of TCP.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...proto.arena import Array
from ...proto.security import TlsFiles
from . import IN_FLIGHT, Ask
from .tcp import connect_each, serve

__all__ = ["connect", "serve"]


def connect(port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
    """See `Lane`."""
    copies = [np.empty_like(batch) for _ in range(IN_FLIGHT)]
    return copying(batch, copies, connect_each(port, copies, tls))


def copying(batch: Array, copies: Sequence[Array], send: Ask) -> Ask:
    """Return a function that copies `batch` to the thread's copy, and sends then."""

    def ask(number: int) -> None:
        np.copyto(copies[number], batch)
        send(number)

    return ask
