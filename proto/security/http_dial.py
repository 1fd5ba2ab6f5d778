"""Connections of HTTP to a server, with what proves who calls."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from ...errors import UsageError
from .credentials import ClientSecurity
from .exposure import stays_here
from .pem import use_ca, use_pair
from .reloading import Reloaded
from .tokens import read_token


class HttpDial:
    """Opens connections to one server; any thread may.

    Args:
        url: http://host:port or https://host:port, perhaps with a path that all requests begin
            with.
        security: None: no token, and of https the CAs that this machine trusts. Its certificates
            are read now, its token with each request if it has changed.

    Attributes:
        host: as requests name it, with the port.
        path: what the path of every request begins with, without a slash at its end.

    Raises:
        UsageError: the URL is none, a file of `security` cannot be used, or http:// is to carry
            what `security` says is to be encrypted.
    """

    def __init__(self, url: str, security: ClientSecurity | None = None) -> None:
        security = security or ClientSecurity()
        try:
            parts = urlsplit(url)
            port = parts.port
            parts.path.encode("ascii")
            host = (parts.hostname or "").encode("idna")
        except ValueError:  # of brackets, of the port, or of letters that a URL does not have
            raise _no_address(url) from None
        readable = url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not host or port == 0 or not readable:
            raise _no_address(url)
        if parts.username or parts.query or parts.fragment:
            raise UsageError(f"{url!r:.120} has more than host, port and path")
        self.path = parts.path.rstrip("/")
        self._host = host.decode()
        self._port = port or (443 if parts.scheme == "https" else 80)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.host = shown if port is None else f"{shown}:{port}"
        self._server_name = security.server_name or self._host
        self._context = client_context(security) if parts.scheme == "https" else None
        path = security.token_file
        self._token = None if path is None else Reloaded((path,), lambda: read_token(path))
        if self._context is None:
            _check_plaintext(url, self._host, security)

    def connect(self, timeout_s: float) -> socket.socket:
        """A connection that stands.

        Raises:
            OSError: nobody answers, not in time, or without the certificate that is asked for.
        """
        connection = socket.create_connection((self._host, self._port), timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is None:
                return connection
            return self._context.wrap_socket(connection, server_hostname=self._server_name)
        except BaseException:
            connection.close()
            raise

    def headers(self) -> dict[str, str]:
        """What proves who calls, beside a request."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token.current()}"}


def _no_address(url: str) -> UsageError:
    return UsageError(f"{url!r:.120} is no address: write http://host:port or https://")


def _check_plaintext(url: str, host: str, security: ClientSecurity) -> None:
    wanted = security.tls is not None or security.token_file is not None
    if wanted and not security.insecure and not stays_here(host):
        raise UsageError(
            f"{url} is not encrypted, and certificates or a token are given: use https://, or "
            "insecure=True if the network is trusted"
        )


def client_context(security: ClientSecurity) -> ssl.SSLContext:
    """What a client of `ssl` connects with: its certificate, and the CAs that it trusts.

    Raises:
        UsageError: a file of `security` cannot be used.
    """
    tls = security.tls
    if tls is None or tls.ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        use_ca(context, tls.ca)
    if tls is not None and tls.certificate is not None and tls.key is not None:
        use_pair(context, tls.certificate, tls.key)
    return context
