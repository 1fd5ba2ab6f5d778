"""Whether an address can be reached from other machines, and whether it may be."""

from __future__ import annotations

import ipaddress

from ...errors import UsageError
from .credentials import ServerSecurity


def check_exposure(
    host: str, security: ServerSecurity | None, insecure: bool, what: str = "a server"
) -> None:
    """Refuse to listen beyond this machine without credentials, unless that is asked for.

    Args:
        host: to listen on.
        security: of what listens.
        insecure: the operator has said so.
        what: listens, in words: "the manager", "the metrics".

    Raises:
        UsageError: `host` is not a loopback address, nothing asks who calls, and `insecure` is
            False.
    """
    asks = security is not None and security.authenticates
    if not insecure and not asks and not is_loopback(host):
        raise UsageError(
            f"{what} on {host} can be reached from other machines, and nothing asks who calls: "
            "give it --tokens or --tls-ca, or listen on 127.0.0.1, or say --insecure if the "
            "network is trusted"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def stays_here(address: str) -> bool:
    """Whether a connection to `address` (`host:port`, a target of gRPC) never leaves here."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in ("ipv4:", "ipv6:", "dns:"):
        address = address.removeprefix(scheme)
    host, _, port = address.removeprefix("///").rpartition(":")
    return is_loopback(host if host and port.isdigit() else address.removeprefix("///"))
