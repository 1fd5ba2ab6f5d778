"""Reads PEM files and says what is wrong with them; gRPC would drop connections in silence."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UsageError
from .credentials import TlsFiles


@dataclass(frozen=True, slots=True)
class Pem:
    """What `TlsFiles` hold, as gRPC takes it."""

    certificate: bytes | None
    key: bytes | None = field(repr=False)
    ca: bytes | None


def read_pem(files: TlsFiles) -> Pem:
    """Read all files and check that they are what they are given for.

    Raises:
        UsageError: one cannot be read or is no PEM, or key and certificate do not belong together.
    """
    pem = Pem(
        certificate=_read("certificate", files.certificate),
        key=_read("key", files.key),
        ca=_read("CA", files.ca),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.ca is not None and pem.ca is not None:
        _check_ca(context, files.ca, pem.ca)
    if files.certificate is not None and files.key is not None:
        use_pair(context, files.certificate, files.key)
    return pem


def _read(what: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror or error}") from None


def _check_ca(context: ssl.SSLContext, path: Path, data: bytes) -> None:
    try:
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise UsageError(f"CA {path} is no certificate in PEM form") from None


def use_ca(context: ssl.SSLContext, ca: Path) -> None:
    """Let those pass whose certificates `ca` has signed.

    Raises:
        UsageError: it cannot be read, or is no PEM.
    """
    data = _read("CA", ca)
    assert data is not None
    _check_ca(context, ca, data)


def use_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key; after an error the context is not to be used.

    Raises:
        UsageError: one cannot be read or is no PEM, or they do not belong together.
    """
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"key {key} does not belong to certificate {certificate}") from None
        raise UsageError(
            f"certificate {certificate} with key {key} cannot be used: one of both is not in PEM "
            f"form ({error.reason or error})"
        ) from None
    except _PasswordAsked:
        raise UsageError(
            f"key {key} has a password, and nobody is there to type it: remove it with "
            f"'openssl pkey -in {key} -out NEW', and keep the file to yourself"
        ) from None
    except OSError as error:  # replaced between reading and checking
        raise UsageError(f"certificate {certificate} cannot be read: {error.strerror}") from None


class _PasswordAsked(Exception):
    """OpenSSL wants a password; without this it would ask the terminal."""


def _no_password() -> str:
    raise _PasswordAsked
