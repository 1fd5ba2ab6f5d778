"""Settings: which files hold the credentials of a client or of a server. No secret is in them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one side of a TLS connection.

    Attributes:
        certificate: our own, with the chain up to the CA behind it. A server must have one.
        key: of `certificate`, without a password.
        ca: certificates that sign those of our peers. At a client: without it, the CAs that gRPC
            brings. At a server: without it, no client is asked for a certificate.

    Raises:
        UsageError: a certificate without its key, or a key without its certificate.
    """

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) is not (self.key is None):
            given, lacks = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise UsageError(
                f"a TLS {given} is given without its {lacks}: name both files, or neither"
            )

    def paths(self) -> tuple[Path, ...]:
        """The files that are named."""
        return tuple(path for path in (self.certificate, self.key, self.ca) if path is not None)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client proves who it is, and knows its server.

    Attributes:
        tls: None: connections are not encrypted.
        token_file: one bearer token, sent with every call; read again when the file changes.
        server_name: what the server's certificate must be made out to; empty: the host dialled.
        insecure: send the token over connections that are not encrypted and leave this machine.
    """

    tls: TlsFiles | None = None
    token_file: Path | None = None
    server_name: str = ""
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """How a server proves who it is, and knows its clients.

    Attributes:
        tls: None: connections are not encrypted. With a `ca`, every client must show a certificate.
        tokens_file: the bearer tokens that are known; see `gate.py`. With it, every call must
            carry one of them.

    Raises:
        UsageError: TLS without a certificate.
    """

    tls: TlsFiles | None = None
    tokens_file: Path | None = None

    def __post_init__(self) -> None:
        if self.tls is not None and self.tls.certificate is None:
            raise UsageError("a server needs a TLS certificate and its key to ask for TLS at all")

    @property
    def wants_certificates(self) -> bool:
        """Whether a client must show a certificate."""
        return self.tls is not None and self.tls.ca is not None

    @property
    def authenticates(self) -> bool:
        """Whether a caller has to prove who it is."""
        return self.tokens_file is not None or self.wants_certificates


def check_exposure(
    host: str, security: ServerSecurity | None, insecure: bool, what: str = "a server"
) -> None:
    """Refuse to listen beyond this machine without credentials, unless that is asked for.

    Args:
        host: to listen on.
        security: of what listens.
        insecure: the operator has said so.
        what: listens, in words: "the manager", "the metrics".

    Raises:
        UsageError: `host` is not a loopback address, nothing asks who calls, and `insecure` is
            False.
    """
    asks = security is not None and security.authenticates
    if not insecure and not asks and not is_loopback(host):
        raise UsageError(
            f"{what} on {host} can be reached from other machines, and nothing asks who calls: "
            "give it --tokens or --tls-ca, or listen on 127.0.0.1, or say --insecure if the "
            "network is trusted"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def stays_here(address: str) -> bool:
    """Whether a connection to `address` (`host:port`, a target of gRPC) never leaves here."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in ("ipv4:", "ipv6:", "dns:"):
        address = address.removeprefix(scheme)
    host, _, port = address.removeprefix("///").rpartition(":")
    return is_loopback(host if host and port.isdigit() else address.removeprefix("///"))
