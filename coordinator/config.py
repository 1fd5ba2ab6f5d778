"""Settings of a service manager, and which addresses it may listen on."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from ..errors import AddressInUse, UsageError

#: Where a mesh is looked for when nobody names one.
DEFAULT_URL = "redis://127.0.0.1:6379"
#: Seconds without a beat after which a member is dead.
DEFAULT_TTL_S = 6.0


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Settings of one service manager.

    Attributes:
        ttl_s: seconds without a report after which a student is gone; also its own lease's TTL.
        sweep_s: seconds between two looks for members whose deadline has passed.
        outage_sweep_s: the same while the registry does not answer.
    """

    ttl_s: float = DEFAULT_TTL_S
    sweep_s: float = 0.05
    outage_sweep_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0.1 <= self.ttl_s <= 3600:
            raise UsageError(f"a TTL is between 0.1 and 3600 seconds, not {self.ttl_s:g}")
        if not 0 < self.sweep_s <= self.ttl_s:
            raise UsageError(f"sweep_s must be above 0 and at most the TTL, not {self.sweep_s:g}")


def check_exposure(host: str, insecure: bool) -> None:
    """Refuse to listen beyond this machine without credentials, unless that is asked for.

    Raises:
        UsageError: `host` is not a loopback address, and `insecure` is False.
    """
    if not insecure and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, and nothing here checks who calls: "
            "listen on 127.0.0.1, or say --insecure if the network is trusted"
        )


def check_free(host: str, port: int) -> None:
    """Find out, before gRPC does and prints it, whether one can listen there.

    Raises:
        UsageError: `host` is no address of this machine.
        AddressInUse: another process listens on `port`.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except PermissionError:
        raise UsageError(f"port {port} is only for root: choose one from 1024 on") from None
    except OSError as error:
        where = join_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"another process listens on {where}: choose another port with --port, 0 for any"
            ) from None
        raise UsageError(f"cannot listen on {where}: {error.strerror or error}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for all addresses of this machine, and so names none."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
