"""The lane of shared memory: our own transport sends only the location of a batch."""

from __future__ import annotations

from ...proto.arena import Array
from ...proto.security import TlsFiles
from ...proto.shared_buffer import SharedBuffer
from . import Ask
from .codec import client_of, serve
from .own import asking

__all__ = ["connect", "serve"]


def connect(port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
    """See `Lane`."""
    return asking(client_of(port, tls), batch, SharedBuffer.create())
