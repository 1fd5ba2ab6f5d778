"""Protocols and addresses of teachers, and versions of the control plane."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from ..runtime.errors import UsageError, VersionMismatch

#: The Open Inference Protocol, which our own teachers speak.
OIP: Final = "oip"
#: Paddle Serving's pipeline server, and its C++ server.
PADDLE_SERVING: Final = "paddle-serving"
PADDLE_SERVING_CPP: Final = "paddle-serving-cpp"
#: Values of the field `protocol` in the registry; empty means `oip`.
PROTOCOLS: Final = (OIP, PADDLE_SERVING, PADDLE_SERVING_CPP)


def check_address(protocol: str, address: str) -> None:
    """Raise UsageError for an address of an unknown form, or a gRPC address without a port.

    Args:
        protocol: one of `PROTOCOLS`; empty means `oip`.
        address: host:port or grpc://host:port. HTTP URLs of `oip` need no port, as HTTP has default
            ports, and are not checked.
    """
    scheme, _, rest = address.rpartition("://")
    if scheme in ("http", "https") and protocol in ("", OIP):
        return
    if scheme not in ("", "grpc") or not rest or "/" in rest:
        raise UsageError(
            f"{address!r:.120} is no address of {protocol or OIP}: write host:port or"
            " grpc://host:port for gRPC, http://host:port for HTTP"
        )
    host, _, port = rest.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r:.120} names no port: write host:port")


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and port of an address of a teacher.

    Args:
        address: host:port, grpc://host:port, or a URL of HTTP.

    Raises:
        ValueError: `address` is none of these.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    if not parts.hostname or port is None:
        raise ValueError(f"{address!r:.120} names no host and port")
    return parts.hostname, port


#: Version of the control plane. Changes that an older peer would misread increase it; new fields
#: alone do not.
PROTOCOL_VERSION = 1
#: The oldest version that this side still understands.
OLDEST_VERSION = 1


def check_version(peer: int) -> None:
    """Accept or refuse the protocol version of a peer.

    Args:
        peer: the version in the peer's message; 0 if it has none.

    Raises:
        VersionMismatch: the peer's version is too old or too new; the message names the needed one.
    """
    if peer < OLDEST_VERSION:
        version = f"protocol version {peer}" if peer > 0 else "no protocol version"
        raise VersionMismatch(
            f"the peer speaks {version}; at least {OLDEST_VERSION} is needed: update the peer"
        )
    if peer > PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the peer speaks protocol version {peer}; this side understands at most "
            f"{PROTOCOL_VERSION}: update this side"
        )
