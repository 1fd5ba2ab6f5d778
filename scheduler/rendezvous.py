"""Which of several equal servers a client turns to: rendezvous (highest random weight) hashing.

Every client ranks the servers by a hash of both names and takes the first. Clients spread evenly
without being told, and a server that goes moves only the clients that it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def ranked(client: str, servers: Iterable[str]) -> list[str]:
    """`servers` in the order in which `client` turns to them, the same for everyone who asks."""
    return sorted(servers, key=lambda server: (_weight(client, server), server))


def _weight(client: str, server: str) -> bytes:
    return hashlib.blake2b(f"{len(client)}:{client}{server}".encode(), digest_size=8).digest()
