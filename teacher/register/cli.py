"""The command `edl teacher register`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ... import supervise
from ...coordinator.options import LogFormat, Verbose
from ...lifecycle import stop_on_signals
from ...logs import configure_logging, tell
from ...proto.security import options as credentials
from . import options

if TYPE_CHECKING:
    from ...proto.security import ServerSecurity


def register(
    service: options.Service,
    endpoint: options.Endpoint,
    model: options.Model,
    coordinator: options.Coordinator,
    content: options.Content = "",
    protocol: options.Protocol = "oip",
    inputs: options.Inputs = None,
    slots: options.Slots = 4,
    device: options.Device = "foreign",
    canary: options.Canary = None,
    rows: options.Rows = 8,
    timeout: options.Timeout = 30.0,
    every: options.Every = 1.0,
    test_every: options.TestEvery = 15.0,
    teacher_id: options.TeacherId = "",
    ttl: options.Ttl = 6.0,
    host: options.Host = "127.0.0.1",
    port: options.Port = 0,
    advertise: options.Advertise = None,
    insecure: options.Insecure = False,
    tls_cert: credentials.TlsCert = None,
    tls_key: credentials.TlsKey = None,
    tls_ca: credentials.TlsCa = None,
    tokens: credentials.Tokens = None,
    token_file: credentials.TokenFile = None,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """The command; `options.REGISTER` says what it does."""
    supervise.end_with_parent()
    configure_logging(verbose, log_format)
    from ...proto.datatypes import TensorSpec
    from ...scheduler.admission import Patience
    from .config import RegisterConfig
    from .sidecar import register as keep_registered

    config = RegisterConfig(
        service,
        endpoint,
        model,
        content,
        coordinator,
        protocol=protocol,
        canary=canary,
        inputs=tuple(map(TensorSpec.parse, inputs or ())),
        rows=rows,
        slots=slots,
        device=device,
        teacher_id=teacher_id,
        ttl_s=ttl,
        timeout_s=timeout,
        patience=Patience(every, test_every),
        host=host,
        port=port,
        advertise=advertise,
        client=credentials.client_security(
            tls_ca, tls_cert, tls_key, token_file, insecure=insecure
        ),
        server=security_at(host, tls_cert, tls_key, tls_ca, tokens, insecure=insecure),
    )
    with stop_on_signals() as stop:
        keep_registered(config, stop, on_ready=typer.echo, on_progress=tell)


def security_at(
    host: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tokens: Path | None,
    *,
    insecure: bool = False,
) -> ServerSecurity | None:
    """Who may ask the sidecar at `host`; on loopback `--tls-ca` alone is for asking the server.

    Raises:
        UsageError: the options do not fit together, or anybody could ask it.
    """
    from ...proto.security import check_exposure, is_loopback

    asks_only = is_loopback(host) and tls_cert is None and tls_key is None
    security = credentials.server_security(tls_cert, tls_key, None if asks_only else tls_ca, tokens)
    check_exposure(host, security, insecure, "the sidecar of a foreign server")
    return security
