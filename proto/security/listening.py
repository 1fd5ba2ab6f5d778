"""Has a server of gRPC's listen, with certificates that are read again when they change."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ...errors import AddressInUse
from .certificates import check_validity
from .credentials import ServerSecurity, TlsFiles
from .pem import Pem, read_pem
from .reloading import Reloaded

if TYPE_CHECKING:
    import grpc
    import grpc.aio

    from .gate import Gate


def listen(
    server: grpc.Server | grpc.aio.Server,
    address: str,
    security: ServerSecurity | None = None,
    gate: Gate | None = None,
) -> int:
    """Bind `address`; the port that was bound.

    With TLS, each new connection is offered the certificate that the files hold by then, unless it
    has expired; connections that stand keep theirs.

    Args:
        server: that is not started yet.
        address: host:port; port 0 is any.
        security: None: neither TLS nor anything else.
        gate: of this server: counts the TLS handshakes that fail, if its `admit` is told the peer
            of each call.

    Raises:
        UsageError: a file of `security` cannot be used, or its certificate has expired.
        AddressInUse: gRPC cannot bind; it does not say why.
    """
    try:
        if security is None or security.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, _credentials(server, security.tls, gate))
    except RuntimeError:
        raise AddressInUse(
            f"cannot listen on {address}: another process may listen there; choose another port"
        ) from None


#: gRPC calls back into credentials for as long as their server lives, and holds them by a bare
#: pointer.
_KEPT: weakref.WeakKeyDictionary[object, list[grpc.ServerCredentials]] = weakref.WeakKeyDictionary()


def _credentials(server: object, files: TlsFiles, gate: Gate | None) -> grpc.ServerCredentials:
    import grpc

    pem = Reloaded(files.paths(), lambda: _read(files))
    offered = [pem.current()]

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC's threads before each handshake."""
        if gate is not None:
            gate.handshake_began()
        current = pem.current()
        if current is offered[0]:
            return None
        offered[0] = current
        return _configuration(current)

    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(offered[0]),
        changed,  # type: ignore[arg-type]  # None says "as before", which its stubs do not know
        require_client_authentication=files.ca is not None,
    )
    _KEPT.setdefault(server, []).append(credentials)
    return credentials


def _read(files: TlsFiles) -> Pem:
    assert files.certificate is not None
    pem = read_pem(files)
    check_validity(files.certificate)
    return pem


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    import grpc

    assert pem.key is not None
    assert pem.certificate is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
