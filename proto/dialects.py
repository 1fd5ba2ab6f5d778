"""What teachers may speak, and the addresses that each is asked at; loads nothing."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from ..errors import UsageError

#: The Open Inference Protocol, which our own teachers speak.
OIP: Final = "oip"
#: Paddle Serving's pipeline server, and its C++ server.
PADDLE_SERVING: Final = "paddle-serving"
PADDLE_SERVING_CPP: Final = "paddle-serving-cpp"
#: What a registry's field `protocol` may say; empty is `oip`.
PROTOCOLS: Final = (OIP, PADDLE_SERVING, PADDLE_SERVING_CPP)


def check_dialled(protocol: str, address: str) -> None:
    """Raise UsageError where an address that is asked over gRPC is none, or names no port.

    Args:
        protocol: one of `PROTOCOLS`; empty: `oip`.
        address: host:port or grpc://host:port; one of HTTP, which has ports of its own, passes.
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
    """Where a connection to a teacher goes.

    Args:
        address: host:port, grpc://host:port, or a URL of HTTP.

    Raises:
        ValueError: it is none of these.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    if not parts.hostname or port is None:
        raise ValueError(f"{address!r:.120} names no host and port")
    return parts.hostname, port
