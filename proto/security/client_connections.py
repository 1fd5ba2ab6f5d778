"""Connections of clients with their credentials: gRPC channels and HTTP sockets."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ...runtime.errors import UsageError
from .access_control import read_token
from .certificates import Reloaded, client_context, read_pem
from .credentials import ClientSecurity, TlsFiles, is_local_address

if TYPE_CHECKING:
    import grpc
    from google.protobuf.descriptor import ServiceDescriptor


class HttpConnector:
    """Opens connections to one HTTP server. Any thread may use it.

    Args:
        url: http://host:port or https://host:port, with an optional path that precedes the path of
            every request.
        security: None: no token, and for https the CAs that this machine trusts. Its files are
            reloaded when they change; open connections keep their certificates.

    Attributes:
        host: value of the Host header, with the port if the URL has one.
        path: prefix of the path of every request, without a trailing slash.

    Raises:
        UsageError: the URL is invalid, a file of `security` cannot be used, or http:// would carry
            credentials unencrypted.
    """

    def __init__(self, url: str, security: ClientSecurity | None = None) -> None:
        security = security or ClientSecurity()
        try:
            parts = urlsplit(url)
            port = parts.port
            parts.path.encode("ascii")
            host = (parts.hostname or "").encode("idna")
        except ValueError:  # invalid brackets, port or characters
            raise _invalid_url(url) from None
        printable = url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not host or port == 0 or not printable:
            raise _invalid_url(url)
        if parts.username or parts.query or parts.fragment:
            raise UsageError(f"{url!r:.120} has more than host, port and path")
        self.path = parts.path.rstrip("/")
        self._host = host.decode()
        self._port = port or (443 if parts.scheme == "https" else 80)
        bracketed = f"[{self._host}]" if ":" in self._host else self._host
        self.host = bracketed if port is None else f"{bracketed}:{port}"
        self._server_name = security.server_name or self._host
        self._contexts: Reloaded[ssl.SSLContext] | None = None
        self._token = _reloaded_token(security)
        if parts.scheme == "https":
            paths = () if security.tls is None else security.tls.paths()
            self._contexts = Reloaded(paths, lambda: client_context(security))
        else:
            _check_plain_url(url, self._host, security)

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection.

        Raises:
            OSError: no server answers in time, or its certificate is not accepted.
        """
        connection = socket.create_connection((self._host, self._port), timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._contexts is None:
                return connection
            context = self._contexts.current()
            return context.wrap_socket(connection, server_hostname=self._server_name)
        except BaseException:
            connection.close()
            raise

    def headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token.current()}"}


def _invalid_url(url: str) -> UsageError:
    return UsageError(f"{url!r:.120} is no address: write http://host:port or https://")


def _check_plain_url(url: str, host: str, security: ClientSecurity) -> None:
    has_credentials = security.tls is not None or security.token_file is not None
    if has_credentials and not security.insecure and not is_local_address(host):
        raise UsageError(
            f"{url} is not encrypted, but certificates or a token are given: use https://, or "
            "insecure=True if the network is trusted"
        )


Options = Sequence[tuple[str, Any]]

#: Ignore the proxies that environment variables name: they are for the Internet, not for a mesh.
_NO_PROXY: Final = ("grpc.enable_http_proxy", 0)


def open_channel(
    address: str, security: ClientSecurity | None = None, options: Options = ()
) -> grpc.Channel:
    """Open a gRPC channel that any thread may use and that ignores HTTP proxies.

    Args:
        address: host:port.
        security: None: neither TLS nor token. Certificates are read now; the token is reloaded when
            its file changes.
        options: gRPC channel options.

    Raises:
        UsageError: a file of `security` cannot be used, or its token would leave this machine
            unencrypted.
    """
    import grpc

    security = security or ClientSecurity()
    _check_plain_channel(address, security)
    token = _reloaded_token(security)
    options = [_NO_PROXY, *options]
    if security.tls is not None and security.server_name:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    if security.tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, _credentials(security.tls), options=options)
    return channel if token is None else grpc.intercept_channel(channel, _token_interceptor(token))


def stub_of(channel: grpc.Channel, service: ServiceDescriptor) -> Any:
    """Return an object with a callable for each method of a service, named like the method."""
    from google.protobuf.message_factory import GetMessageClass

    stub = SimpleNamespace()
    for method in service.methods:
        sides = method.client_streaming, method.server_streaming
        kind = "_".join("stream" if streams else "unary" for streams in sides)
        call = getattr(channel, kind)(
            f"/{service.full_name}/{method.name}",
            GetMessageClass(method.input_type).SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )
        setattr(stub, method.name, call)
    return stub


def _token_interceptor(token: Reloaded[str]) -> Any:
    """Create an interceptor that adds a bearer token to calls of all four kinds."""
    import grpc

    def add_token(_self: object, call: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), ("authorization", f"Bearer {token.current()}"))
        return call(details._replace(metadata=metadata), request)

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    bases = (
        grpc.UnaryUnaryClientInterceptor,
        grpc.UnaryStreamClientInterceptor,
        grpc.StreamUnaryClientInterceptor,
        grpc.StreamStreamClientInterceptor,
    )
    return type("TokenInterceptor", bases, {f"intercept_{kind}": add_token for kind in kinds})()


def _check_plain_channel(address: str, security: ClientSecurity) -> None:
    exposed = security.token_file is not None and security.tls is None
    if exposed and not security.insecure and not is_local_address(address):
        raise UsageError(
            f"the token would be sent to {address} unencrypted: name the CA of the server's "
            "certificate (--tls ca=FILE, EDL_TLS_CA, or tls= of a reader); a reader in a trusted "
            "network may have insecure=True instead"
        )


def _reloaded_token(security: ClientSecurity) -> Reloaded[str] | None:
    path = security.token_file
    return None if path is None else Reloaded((path,), lambda: read_token(path))


def _credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    import grpc

    pem = read_pem(files)
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
