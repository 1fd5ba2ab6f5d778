"""Command lines of a coordinator: `edl coordinator serve` and `edl coordinator acl`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..lifecycle import configure_logging, open_all_descriptors, run_cli, stop_on_signals
from ..proto.security.options import (
    TlsCa,
    TlsCert,
    TlsKey,
    Tokens,
    client_security,
    server_security,
)
from ..supervise import end_with_parent
from .config import DEFAULT_LEADER_TTL_S, DEFAULT_TTL_S, ManagerConfig
from .ops.options import quiet_grpc

_LISTENING = "Where it listens"
_LEASES = "Leases"
_SECURITY = "Security"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def coordinator() -> None:
    """Who is alive, and who serves whom."""


@app.command()
def serve(
    redis: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_REDIS",
            help="URL of a running Redis or Valkey: redis://, rediss:// (TLS), unix://, "
            "redis+sentinel://host:port,.../MASTER. Default: start one.",
        ),
    ] = None,
    redis_port: Annotated[
        int | None,
        typer.Option(
            envvar="EDL_REDIS_PORT",
            min=0,
            max=65535,
            help="Port of the Redis that is started; 0: any free. Default: 6379, or any if taken.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(envvar="EDL_HOST", help="Address to listen on.", rich_help_panel=_LISTENING),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar="EDL_PORT",
            min=0,
            max=65535,
            help="Port of the manager; 0: any free.",
            rich_help_panel=_LISTENING,
        ),
    ] = 0,
    advertise: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_ADVERTISE",
            help="Host name that others reach this machine by.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_METRICS_LISTEN",
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics here; a port alone is one of this machine only.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_HTTP",
            metavar="[HOST:]PORT",
            help="Serve the live page of the mesh here; a port alone is one of this machine only.",
            rich_help_panel=_LISTENING,
        ),
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(
            envvar="EDL_TTL",
            help="Seconds without a sign of life until a member is dead.",
            rich_help_panel=_LEASES,
        ),
    ] = DEFAULT_TTL_S,
    leader_ttl: Annotated[
        float,
        typer.Option(
            envvar="EDL_LEADER_TTL",
            help="Seconds until another manager takes over from one that leads and is dead.",
            rich_help_panel=_LEASES,
        ),
    ] = DEFAULT_LEADER_TTL_S,
    admission: Annotated[
        bool,
        typer.Option(
            "--admission/--no-admission",
            envvar="EDL_ADMISSION",
            help="Call each teacher at its address before students hear of it, and have it prove "
            "who it is.",
            rich_help_panel=_SECURITY,
        ),
    ] = True,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tokens: Tokens = None,
    probe_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="EDL_PROBE_CA",
            help="Certificates, in PEM form, that sign those of teachers. Default: --tls-ca.",
            rich_help_panel=_SECURITY,
        ),
    ] = None,
    probe_token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="EDL_PROBE_TOKEN_FILE",
            help="File with the bearer token to call teachers with, where they ask for one.",
            rich_help_panel=_SECURITY,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen beyond this machine without credentials.",
            rich_help_panel=_SECURITY,
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Run a service manager, and a Redis unless one is named, until SIGTERM or Ctrl-C.

    Any number of managers may run over one Redis: each serves students, one of them leads each
    service, and another takes over when it dies. All of them need the same --ttl.
    """
    end_with_parent()
    configure_logging(verbose)
    open_all_descriptors()
    quiet_grpc()
    from .promptness import be_prompt
    from .serve import ServeConfig
    from .serve import serve as run

    config = ServeConfig(
        redis=redis,
        redis_port=redis_port,
        host=host,
        port=port,
        advertise=advertise,
        metrics_listen=metrics_listen,
        http=http,
        insecure=insecure,
        security=server_security(tls_cert, tls_key, tls_ca, tokens),
        probing=client_security(
            probe_ca or tls_ca, tls_cert, tls_key, probe_token_file, insecure=insecure
        ),
        manager=ManagerConfig(ttl_s=ttl, leader_ttl_s=leader_ttl, admission=admission),
    )

    def announce(url: str, address: str) -> None:
        typer.echo(f"coordinator ready: {url} manager {address}")

    be_prompt()
    with stop_on_signals() as stop:
        run(config, stop, announce)


@app.command()
def acl(
    service: Annotated[str, typer.Option(help="Name of the service.")],
    teacher_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of the service's teachers.")
    ] = None,
    reader_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of readers.")
    ] = None,
    manager_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of service managers.")
    ] = None,
) -> None:
    """Print Redis users for a service's teachers, for readers, and for managers.

    The lines belong into the `aclfile` of Redis 7 or Valkey. They hold hashes, never a password. A
    user whose password file is not named gets a placeholder, which Redis refuses to load.
    """
    from .registry.acl import rules, users
    from .registry.redis_url import read_password

    files = (teacher_password_file, reader_password_file, manager_password_file)
    named = zip(users(service), files, strict=True)
    secrets = {user: read_password(str(path)) for user, path in named if path is not None}
    for line in rules(service, secrets):
        typer.echo(line)


def main() -> None:
    """`python -m edl.coordinator.cli`."""
    run_cli(app)


if __name__ == "__main__":
    main()
