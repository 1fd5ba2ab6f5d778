"""The least that a reader does with a teacher of its host: copy each batch, and send its location.

What the teacher reads in shared memory is left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...proto.arena import Array
from ...proto.security import TlsFiles
from . import IN_FLIGHT, Ask, tcp
from .copied import copying

#: As many bytes as a location and its generation.
_LOCATION: Final = np.zeros((1, 3), np.uint64)


def serve(batch: Array, tls: TlsFiles | None = None) -> int:
    """See `Lane`."""
    return tcp.serve(_LOCATION, tls)


def connect(port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
    """See `Lane`."""
    copies = [np.empty_like(batch) for _ in range(IN_FLIGHT)]
    return copying(batch, copies, tcp.connect(port, _LOCATION, tls))
