"""The commands `edl coordinator serve` and `edl coordinator acl`."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from ..proto.security import options as credentials
from ..runtime.errors import UsageError
from ..runtime.lifecycle import open_all_descriptors, run_cli, stop_on_signals
from ..runtime.logs import configure_logging
from ..runtime.supervise import end_with_parent
from ..scheduler.autoscale import AutoscaleConfig
from . import options
from .config import DEFAULT_LEADER_TTL_S, DEFAULT_TTL_S, ManagerConfig
from .ops.options import quiet_grpc

_USUAL = AutoscaleConfig()
#: Thresholds of the garbage collector: new objects between collections of the youngest generation;
#: collections of a generation between those of the next one.
_YOUNG, _MIDDLE, _OLD = 10_000, 10, 1_000
#: Seconds after which a computing thread yields to one that has a message to pass.
_SWITCH_S: Final = 0.001

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def coordinator() -> None:
    """Service managers: they hold leases and assign teachers to students."""


@app.command()
def serve(
    redis: options.Redis = None,
    redis_port: options.RedisPort = None,
    listen: options.Listen = options.DEFAULT_LISTEN,
    advertise: options.Advertise = None,
    metrics_listen: options.MetricsListen = None,
    http: options.Http = None,
    ttl: options.Ttl = DEFAULT_TTL_S,
    leader_ttl: options.LeaderTtl = DEFAULT_LEADER_TTL_S,
    admission: options.Admission = True,
    tls: credentials.Tls = None,
    tokens: credentials.Tokens = None,
    probe_ca: options.ProbeCa = None,
    probe_token_file: options.ProbeTokenFile = None,
    insecure: options.Insecure = False,
    min_teachers: options.MinTeachers = _USUAL.min,
    max_teachers: options.MaxTeachers = _USUAL.max,
    freeze: options.Freeze = _USUAL.freeze_s,
    up_after: options.UpAfter = _USUAL.up_after_s,
    down_after: options.DownAfter = _USUAL.down_after_s,
    idle_to_zero: options.IdleToZero = _USUAL.idle_to_zero_s,
    teacher_price: options.TeacherPrice = _USUAL.price_per_teacher_hour,
    cost_ceiling: options.CostCeiling = None,
    verbose: options.Verbose = False,
) -> None:
    """Run a service manager, and a Redis unless --redis names one, until SIGTERM or Ctrl-C.

    Several managers may share a Redis: each serves students, one leads each service, and another
    takes over if it dies. All need the same --ttl and the same options of autoscaling.
    """
    end_with_parent()
    configure_logging(verbose)
    open_all_descriptors()
    quiet_grpc()
    from .serve import ServeConfig
    from .serve import serve as run

    try:
        autoscale = AutoscaleConfig(
            min_teachers,
            max_teachers,
            freeze,
            up_after,
            down_after,
            idle_to_zero,
            teacher_price,
            cost_ceiling,
        )
    except ValueError as error:
        raise UsageError(f"autoscaling: {error}") from None
    files = credentials.tls_files(tls)
    config = ServeConfig(
        redis=redis,
        redis_port=redis_port,
        host=listen.host,
        port=listen.port,
        advertise=advertise,
        metrics_listen=metrics_listen,
        http=http,
        insecure=insecure,
        security=credentials.server_security(files, tokens),
        probing=credentials.client_security(
            replace(files, ca=probe_ca or files.ca), probe_token_file, insecure=insecure
        ),
        manager=ManagerConfig(
            ttl_s=ttl,
            leader_ttl_s=leader_ttl,
            admission=admission,
            autoscale=autoscale,
        ),
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
        Path | None, typer.Option(help="File with the password of nodes of trainings.")
    ] = None,
    agent_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of machines with agents.")
    ] = None,
    fleet_password_file: Annotated[
        Path | None,
        typer.Option(help="File with the password of fleets and of users who submit jobs."),
    ] = None,
    manager_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of service managers.")
    ] = None,
) -> None:
    """Print the Redis users of a service: teachers, readers, students, agents, fleets, managers.

    Put the lines into the `aclfile` of Redis 7 or Valkey. They contain hashes, never passwords. A
    user without a password file gets a placeholder, which Redis refuses to load.
    """
    from .registry.acl import rules, users
    from .store.redis_url import read_password

    files = (
        teacher_password_file,
        reader_password_file,
        student_password_file,
        agent_password_file,
        fleet_password_file,
        manager_password_file,
    )
    named = zip(users(service), files, strict=True)
    secrets = {user: read_password(str(path)) for user, path in named if path is not None}
    for line in rules(service, secrets):
        typer.echo(line)


def be_prompt() -> None:
    """Bound the time for which one thread delays the others.

    Make full garbage collections rare: with thousands of teachers one stops all threads for longer
    than an assignment may take, and frees nothing, as reference counts free what the manager
    drops. Collections of young objects go on.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def main() -> None:
    """Run the command line; `python -m edl.coordinator.cli` calls it."""
    run_cli(app)


if __name__ == "__main__":
    main()
