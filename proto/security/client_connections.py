"""How a client reaches a server: channels of gRPC, connections of HTTP, and their credentials."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ...errors import UsageError
from .certificates import Reloaded, client_context, read_pem
from .credentials import ClientSecurity, TlsFiles, stays_here
from .gate import read_token

if TYPE_CHECKING:
    import grpc


class HttpConnector:
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
        self._token = _token(security)
        if self._context is None:
            _check_plain_url(url, self._host, security)

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


def _check_plain_url(url: str, host: str, security: ClientSecurity) -> None:
    wanted = security.tls is not None or security.token_file is not None
    if wanted and not security.insecure and not stays_here(host):
        raise UsageError(
            f"{url} is not encrypted, and certificates or a token are given: use https://, or "
            "insecure=True if the network is trusted"
        )


Options = Sequence[tuple[str, Any]]

#: Proxies of the environment are for the world outside; a mesh is not reached through them.
_NO_PROXY: Final = ("grpc.enable_http_proxy", 0)


def open_channel(
    address: str, security: ClientSecurity | None = None, options: Options = ()
) -> grpc.Channel:
    """A channel whose calls may come from any thread, and go through no proxy for HTTP.

    Args:
        address: host:port.
        security: None: neither TLS nor token. Its certificates are read now, its token with each
            call if it has changed.
        options: of gRPC's.

    Raises:
        UsageError: a file of `security` cannot be used, or its token would leave this machine
            unencrypted.
    """
    import grpc

    security = security or ClientSecurity()
    _check_plain_channel(address, security)
    token = _token(security)
    options = [_NO_PROXY, *options]
    if security.tls is not None and security.server_name:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    if security.tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, _credentials(security.tls), options=options)
    return channel if token is None else grpc.intercept_channel(channel, _signing(token))


def _signing(token: Reloaded[str]) -> Any:
    """What puts a bearer token on every call of a channel, of gRPC's four kinds."""
    import grpc

    def signed(_self: object, call: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), ("authorization", f"Bearer {token.current()}"))
        return call(details._replace(metadata=metadata), request)

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    bases = (
        grpc.UnaryUnaryClientInterceptor,
        grpc.UnaryStreamClientInterceptor,
        grpc.StreamUnaryClientInterceptor,
        grpc.StreamStreamClientInterceptor,
    )
    return type("Signing", bases, {f"intercept_{kind}": signed for kind in kinds})()


def _check_plain_channel(address: str, security: ClientSecurity) -> None:
    exposed = security.token_file is not None and security.tls is None
    if exposed and not security.insecure and not stays_here(address):
        raise UsageError(
            f"the token would go to {address} unencrypted, for everybody on the way to read: name "
            "the CA of its certificate (--tls-ca, EDL_TLS_CA; tls= of a reader, which may be "
            "told insecure=True instead if the network is trusted)"
        )


def _token(security: ClientSecurity) -> Reloaded[str] | None:
    path = security.token_file
    return None if path is None else Reloaded((path,), lambda: read_token(path))


def _credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    import grpc

    pem = read_pem(files)
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
