"""Where a node's ranks can be reached: its address as others see it, and ports that are free."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from ...coordinator.store.redis_url import parse
from ...errors import UsageError

LOOPBACK: Final = "127.0.0.1"


def own_address(coordinator: str | None) -> str:
    """The address of this machine on its way to the coordinator; loopback where there is none.

    Args:
        coordinator: Redis URL.

    Raises:
        UsageError: the URL is none.
    """
    hosts = parse(coordinator).hosts if coordinator else ()
    for host, port in hosts:
        with contextlib.suppress(OSError):  # a name that cannot be resolved; no way there
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # of UDP: nothing is sent
                return str(probe.getsockname()[0])
    return LOOPBACK


def free_endpoints(host: str, count: int) -> tuple[str, ...]:
    """`count` different host:port on which nobody listens now.

    Raises:
        UsageError: `host` is no address of this machine.
    """
    bare = host.strip("[]")
    try:
        with contextlib.ExitStack() as held:
            ports = []
            for _ in range(count):
                family, kind, protocol, _, address = socket.getaddrinfo(
                    bare, 0, type=socket.SOCK_STREAM
                )[0]
                probe = held.enter_context(socket.socket(family, kind, protocol))
                probe.bind(address)
                ports.append(probe.getsockname()[1])
    except OSError as error:
        raise UsageError(
            f"ranks cannot listen at {host!r}: {error.strerror or error}; --host names an address"
            " of this machine"
        ) from error
    shown = f"[{bare}]" if ":" in bare else bare
    return tuple(f"{shown}:{port}" for port in ports)
