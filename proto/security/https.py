"""TLS of a server that is not gRPC's, with certificates that are read again when they change."""

from __future__ import annotations

import ssl

from .certificates import check_validity
from .credentials import TlsFiles
from .pem import use_ca, use_pair
from .reloading import Reloaded


def reloading_context(files: TlsFiles, *, ask_clients: bool = False) -> ssl.SSLContext:
    """What a server of `ssl` listens with.

    Each new connection is offered the certificate that the files hold by then, unless it has
    expired; connections that stand keep theirs.

    Args:
        files: certificate and key; and the CA of its clients.
        ask_clients: every client must show a certificate that the CA has signed, where there is
            one; False asks none.

    Raises:
        UsageError: one of these cannot be used, or the certificate has expired.
    """
    contexts = Reloaded(files.paths(), lambda: _context(files, ask_clients))

    def changed(connection: ssl.SSLObject, _name: str | None, _offered: ssl.SSLContext) -> None:
        """Asked by OpenSSL in each handshake, whether or not the client names a host."""
        connection.context = contexts.current()

    # Not the one that is reloaded: what is loaded into a context in part cannot be taken back.
    first = _context(files, ask_clients)
    first.sni_callback = changed
    return first


def _context(files: TlsFiles, ask_clients: bool) -> ssl.SSLContext:
    assert files.certificate is not None
    assert files.key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    use_pair(context, files.certificate, files.key)
    check_validity(files.certificate)
    if ask_clients and files.ca is not None:
        use_ca(context, files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
