"""Channels of gRPC's to a server, with what proves who calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from .credentials import ClientSecurity
from .exposure import stays_here
from .pem import read_pem
from .reloading import Reloaded
from .tokens import read_token

if TYPE_CHECKING:
    import grpc

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
    _check_plaintext(address, security)
    token = _token(security)
    options = [_NO_PROXY, *options]
    if security.tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(
            address, _credentials(security), options=_with_name(options, security)
        )
    if token is None:
        return channel
    from .bearer import BearerInterceptor

    return grpc.intercept_channel(channel, BearerInterceptor(token))


def _check_plaintext(address: str, security: ClientSecurity) -> None:
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


def _credentials(security: ClientSecurity) -> grpc.ChannelCredentials:
    import grpc

    assert security.tls is not None
    pem = read_pem(security.tls)
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)


def _with_name(options: Options, security: ClientSecurity) -> list[tuple[str, Any]]:
    if not security.server_name:
        return list(options)
    return [*options, ("grpc.ssl_target_name_override", security.server_name)]
