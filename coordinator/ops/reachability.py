"""Checks whether addresses can be reached from this machine, and when certificates expire."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing

from ...proto import coordinator_pb2 as pb
from ...proto.clients import open_client
from ...proto.protocols import host_and_port
from ...proto.security import ClientSecurity
from ...proto.security.client_connections import HttpConnector
from ...runtime.errors import AccessError, EdlError

_TIMEOUT_S = 2.0


def refusal(address: str) -> str:
    """Return why `host:port` or a URL cannot be reached; empty: something listens there."""
    try:
        with socket.create_connection(host_and_port(address), timeout=_TIMEOUT_S):
            return ""
    except ValueError as error:
        return str(error)
    except TimeoutError:
        return f"{address} does not answer within {_TIMEOUT_S:g} s"
    except OSError as error:
        return f"{address}: {error.strerror or error}"


def exclusion(teacher: pb.Teacher, service: str, security: ClientSecurity | None) -> str:
    """Return why a teacher refuses these credentials; empty: it accepts them or is away."""
    model = teacher.model or service
    try:
        with closing(open_client(teacher.protocol, teacher.address, model, security)) as client:
            client.probe(_TIMEOUT_S)
    except AccessError as error:
        return str(error)
    except EdlError:  # it does not answer, or is not ready
        pass
    return ""


def certificate_expiry(address: str, security: ClientSecurity) -> float:
    """Return when the certificate of a server expires, if it is trusted here.

    Args:
        address: `host:port` or an https:// URL.
        security: how to call it.

    Returns:
        Seconds since 1970, UTC.

    Raises:
        OSError: the server does not answer or speak TLS, or its certificate is not trusted.
        UsageError: a file of `security` cannot be used.
    """
    url = address if "://" in address else f"https://{address}"
    with HttpConnector(url, security).connect(_TIMEOUT_S) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        shown = connection.getpeercert() or {}
        return ssl.cert_time_to_seconds(str(shown["notAfter"]))
