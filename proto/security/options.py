"""Command-line options for credentials, and the security settings made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...runtime.errors import UsageError
from .credentials import ClientSecurity, ServerSecurity, TlsFiles

_PANEL = "Security"

TlsCert = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_TLS_CERT",
        rich_help_panel=_PANEL,
        help="Our certificate, in PEM form, with its chain. Read again when it changes.",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_TLS_KEY", rich_help_panel=_PANEL, help="The key of --tls-cert, in PEM form."
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_TLS_CA",
        rich_help_panel=_PANEL,
        help="Certificates, in PEM form, that sign those of our peers. A server that has it asks "
        "every client for a certificate.",
    ),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_TOKENS",
        rich_help_panel=_PANEL,
        help="File with the accepted bearer tokens, one per line: TOKEN, or ROLE[:NAME] TOKEN, "
        "with ROLE one of student, viewer, admin. Read again when it changes.",
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


def client_security(
    tls_ca: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    token_file: Path | None = None,
    *,
    insecure: bool = False,
) -> ClientSecurity | None:
    """Return the security settings of a client; None (no TLS, no token) without options.

    Raises:
        UsageError: the options do not fit together.
    """
    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    if not tls.paths() and token_file is None:
        return None
    return ClientSecurity(tls if tls.paths() else None, token_file, insecure=insecure)


def server_security(
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_ca: Path | None = None,
    tokens: Path | None = None,
) -> ServerSecurity | None:
    """Return the security settings of a server; None (every caller is let in) without options.

    Raises:
        UsageError: the options do not fit together.
    """
    tls = TlsFiles(tls_cert, tls_key, tls_ca)
    if not tls.paths():
        return None if tokens is None else ServerSecurity(None, tokens)
    if tls.certificate is None:
        raise UsageError("--tls-ca of a server needs --tls-cert and --tls-key beside it")
    return ServerSecurity(tls, tokens)
