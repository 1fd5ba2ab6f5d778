"""Command-line options for credentials, and the security settings made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from ...runtime.structured_option import Given, Key, StructuredOption
from .credentials import ClientSecurity, ServerSecurity, TlsFiles

_PANEL = "Security"


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """Keys of `--tls`."""

    ca: Annotated[
        Path | None,
        Key(
            "CA certificates, in PEM form, that sign the certificates of peers. With them, a "
            "server requires a certificate of every client.",
            "EDL_TLS_CA",
        ),
    ] = None
    cert: Annotated[
        Path | None, Key("our certificate, in PEM form, with its chain.", "EDL_TLS_CERT")
    ] = None
    key: Annotated[Path | None, Key("the key of cert, in PEM form.", "EDL_TLS_KEY")] = None


TLS: Final = StructuredOption("--tls", TlsKeys)
Tls = Annotated[
    list[Given] | None,
    TLS.option("Files of TLS. Servers read them again when they change.", panel=_PANEL),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_TOKENS",
        rich_help_panel=_PANEL,
        help="File with the accepted bearer tokens, one per line: ROLE TOKEN or ROLE:NAME TOKEN, "
        "with ROLE one of student, viewer, admin; TOKEN alone: student. Read again when it "
        "changes.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_TOKEN_FILE",
        rich_help_panel=_PANEL,
        help="File with the bearer token to call with. Read again when it changes.",
    ),
]


def tls_files(given: Sequence[Given] | None) -> TlsFiles:
    """Return the files that `--tls` or its variables name.

    Raises:
        UsageError: the certificate or the key is given without the other.
    """
    keys = TLS.read(given)
    return TlsFiles(keys.cert, keys.key, keys.ca)


def tls_words(tls: TlsFiles) -> list[str]:
    """Return the arguments of a command line that name these files by `--tls`."""
    return TLS.words({"ca": tls.ca, "cert": tls.certificate, "key": tls.key})


def client_security(
    tls: TlsFiles, token_file: Path | None = None, *, insecure: bool = False
) -> ClientSecurity | None:
    """Return the security settings of a client; None (no TLS, no token) if no file is named."""
    if not tls.paths() and token_file is None:
        return None
    return ClientSecurity(tls if tls.paths() else None, token_file, insecure=insecure)


def server_security(tls: TlsFiles, tokens: Path | None = None) -> ServerSecurity | None:
    """Return the security settings of a server; None (anybody may call it) if no file is named.

    Raises:
        UsageError: `tls` names a CA, but no certificate.
    """
    if not tls.paths() and tokens is None:
        return None
    return ServerSecurity(tls if tls.paths() else None, tokens)
