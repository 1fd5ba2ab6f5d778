"""Command lines of a coordinator: `edl coordinator serve` and `edl coordinator acl`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..lifecycle import configure_logging, open_all_descriptors, run_cli, stop_on_signals
from ..proto.security import options as credentials
from ..supervise import end_with_parent
from . import options
from .config import DEFAULT_LEADER_TTL_S, DEFAULT_TTL_S, ManagerConfig
from .ops.options import quiet_grpc

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def coordinator() -> None:
    """Who is alive, and who serves whom."""


@app.command()
def serve(
    redis: options.Redis = None,
    redis_port: options.RedisPort = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 0,
    advertise: options.Advertise = None,
    metrics_listen: options.MetricsListen = None,
    http: options.Http = None,
    ttl: options.Ttl = DEFAULT_TTL_S,
    leader_ttl: options.LeaderTtl = DEFAULT_LEADER_TTL_S,
    admission: options.Admission = True,
    tls_cert: credentials.TlsCert = None,
    tls_key: credentials.TlsKey = None,
    tls_ca: credentials.TlsCa = None,
    tokens: credentials.Tokens = None,
    probe_ca: options.ProbeCa = None,
    probe_token_file: options.ProbeTokenFile = None,
    insecure: options.Insecure = False,
    verbose: options.Verbose = False,
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
        security=credentials.server_security(tls_cert, tls_key, tls_ca, tokens),
        probing=credentials.client_security(
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
    student_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of the nodes of trainings.")
    ] = None,
    manager_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of service managers.")
    ] = None,
) -> None:
    """Print Redis users for a service's teachers, readers, nodes of trainings, and managers.

    The lines belong into the `aclfile` of Redis 7 or Valkey. They hold hashes, never a password. A
    user whose password file is not named gets a placeholder, which Redis refuses to load.
    """
    from .registry.acl import rules, users
    from .registry.redis_url import read_password

    files = (
        teacher_password_file,
        reader_password_file,
        student_password_file,
        manager_password_file,
    )
    named = zip(users(service), files, strict=True)
    secrets = {user: read_password(str(path)) for user, path in named if path is not None}
    for line in rules(service, secrets):
        typer.echo(line)


def main() -> None:
    """`python -m edl.coordinator.cli`."""
    run_cli(app)


if __name__ == "__main__":
    main()
