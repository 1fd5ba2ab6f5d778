"""Whether something listens at an address, seen from here."""

from __future__ import annotations

import socket

_TIMEOUT_S = 2.0


def refusal(address: str) -> str:
    """Why nobody can be reached at `host:port` or a URL; empty when somebody listens there."""
    scheme, _, place = address.rpartition("://")
    host, colon, port = place.partition("/")[0].rpartition(":")
    if scheme and not (colon and port.isdigit()):
        host, port = place.partition("/")[0], "443" if scheme == "https" else "80"
    if not port.isdigit():
        return f"{address!r} is no host:port"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S):
            return ""
    except TimeoutError:
        return f"{address} does not answer within {_TIMEOUT_S:g} s"
    except OSError as error:
        return f"{address}: {error.strerror or error}"
