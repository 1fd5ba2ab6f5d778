"""Security settings, and rules for addresses without encryption or without authentication.

The settings name files with credentials; they hold no secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...runtime.addresses import is_loopback
from ...runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for one side of a TLS connection.

    Attributes:
        certificate: our own certificate, followed by its chain up to the CA. A server needs one.
        key: key of `certificate`, without a password.
        ca: CA certificates that sign the certificates of peers. Without it, a client trusts the CAs
            that gRPC ships (over gRPC) or those of this machine (over HTTP and our transport), and
            a server asks no client for a certificate.

    Raises:
        UsageError: the certificate or the key is given without the other.
    """

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) is not (self.key is None):
            given, missing = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise UsageError(
                f"a TLS {given} is given without its {missing}: name both files, or neither"
            )

    def paths(self) -> tuple[Path, ...]:
        """Return the paths that are set."""
        return tuple(path for path in (self.certificate, self.key, self.ca) if path is not None)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Credentials of a client, and how it identifies its server.

    Attributes:
        tls: None: no certificate of our own, and no encryption except for https:// addresses.
        token_file: a bearer token, sent with every call; reloaded when the file changes.
        server_name: the name in the server's certificate; empty: the host of the address.
        insecure: allow credentials with unencrypted connections that leave this machine.
    """

    tls: TlsFiles | None = None
    token_file: Path | None = None
    server_name: str = ""
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """Credentials of a server, and how it identifies its clients.

    Attributes:
        tls: None for unencrypted connections. If it has a `ca`, every client must present a
            certificate.
        tokens_file: the accepted bearer tokens (`access_control.py`); every call must carry one.

    Raises:
        UsageError: `tls` has no certificate.
    """

    tls: TlsFiles | None = None
    tokens_file: Path | None = None

    def __post_init__(self) -> None:
        if self.tls is not None and self.tls.certificate is None:
            raise UsageError("a server with TLS needs a certificate: --tls cert=FILE,key=FILE")

    @property
    def wants_certificates(self) -> bool:
        """Whether clients must present a certificate."""
        return self.tls is not None and self.tls.ca is not None

    @property
    def authenticates(self) -> bool:
        """Whether callers must authenticate at all."""
        return self.tokens_file is not None or self.wants_certificates


def check_exposure(host: str, security: ServerSecurity | None, insecure: bool, what: str) -> None:
    """Refuse to listen beyond loopback without authentication, unless the operator allows it.

    Args:
        host: the host to listen on.
        security: security settings of the server.
        insecure: whether the operator allows it.
        what: the name of the server in the message: "the manager", "the metrics".

    Raises:
        UsageError: `host` is not a loopback address, callers are not authenticated, and `insecure`
            is False.
    """
    authenticates = security is not None and security.authenticates
    if not insecure and not authenticates and not is_loopback(host):
        raise UsageError(
            f"{what} on {host} can be reached from other machines, and callers are not "
            "authenticated: give it --tokens or --tls ca=FILE, or listen on 127.0.0.1, or pass "
            "--insecure if the network is trusted"
        )


def is_local_address(address: str) -> bool:
    """Return whether an address or a `Host` header, with or without a port, is loopback."""
    host, _, port = address.rpartition(":")
    has_port = port.isdigit() and (":" not in host or host.endswith("]"))  # else an IPv6 address
    return is_loopback(host if has_port else address)
