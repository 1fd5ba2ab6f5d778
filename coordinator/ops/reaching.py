"""Whether something listens at an address, and with which certificate, seen from here."""

from __future__ import annotations

import socket
import ssl

from ...proto.security import ClientSecurity
from ...proto.security.certificates import Validity
from ...proto.security.http_dial import HttpDial

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


def certificate_of(address: str, security: ClientSecurity) -> Validity:
    """When the certificate holds that a server shows and that is trusted here.

    Args:
        address: `host:port` or an https:// URL.
        security: how to call it.

    Raises:
        OSError: it does not answer, speaks no TLS, or its certificate is refused.
        UsageError: a file of `security` cannot be used.
    """
    url = address if "://" in address else f"https://{address}"
    with HttpDial(url, security).connect(_TIMEOUT_S) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        shown = connection.getpeercert() or {}
        begins, ends = (
            ssl.cert_time_to_seconds(str(shown[end])) for end in ("notBefore", "notAfter")
        )
        return Validity(begins, ends)
