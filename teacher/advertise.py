"""The address at which others reach a teacher: what it has bound, or what stands in front of it."""

from __future__ import annotations

import socket

from ..coordinator.config import is_wildcard, join_address, named_by_address
from ..errors import UsageError
from .config import TeacherConfig


def advertised(config: TeacherConfig, bound_port: int) -> str:
    """`host:port` for students.

    Raises:
        UsageError: `config.advertise` is neither HOST nor HOST:PORT, or asks for an address of
            ours, and there is none.
    """
    bound = config.server.host
    host, port = split(config.advertise or (socket.gethostname() if is_wildcard(bound) else bound))
    return join_address(named_by_address(host), port or bound_port)


def split(text: str) -> tuple[str, int]:
    """Host and port of "HOST" or "HOST:PORT", an IPv6 address with a port in brackets; 0: no port.

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # a bare IPv6 address has no port
        return text, 0
    if host.startswith("[") and port.endswith("]"):
        return text, 0
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(
            f"{text!r} is no address to advertise: say HOST, or HOST:PORT with a port from 1 to "
            "65535"
        )
    return host, int(port)
