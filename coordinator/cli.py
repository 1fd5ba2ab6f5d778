"""The commands `edl coordinator serve` and `edl coordinator acl`."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from typing import Annotated, Final

import typer

from ..proto.security import options as credentials
from ..runtime.lifecycle import raise_descriptor_limit, stop_on_signals
from ..runtime.logs import configure_logging
from ..runtime.supervise import end_with_parent
from . import options
from .config import ManagerConfig
from .ops.options import quiet_grpc

#: Thresholds of the garbage collector: net new objects per collection of the youngest generation,
#: collections of the youngest per collection of the middle one, and of the middle one per full one.
_YOUNG, _MIDDLE, _OLD = 10_000, 10, 1_000
#: Seconds after which Python switches from a computing thread to a waiting one.
_SWITCH_S: Final = 0.001

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def coordinator() -> None:
    """Service managers: they watch leases and assign teachers to students."""


@app.command()
def serve(
    redis: options.Redis = None,
    redis_port: options.RedisPort = None,
    listen: options.Listen = options.DEFAULT_LISTEN,
    advertise: options.Advertise = None,
    metrics_listen: options.MetricsListen = None,
    http: options.Http = None,
    ttl: options.Ttl = None,
    admission: options.Admission = True,
    tls: credentials.Tls = None,
    tokens: credentials.Tokens = None,
    probe: options.Probe = None,
    insecure: options.Insecure = False,
    autoscale: options.Autoscale = None,
) -> None:
    """Run a service manager, and a Redis unless --redis names one, until SIGTERM or Ctrl-C.

    Several managers may share a Redis. Each serves students. One manager leads each service; if it
    dies, another takes over. All need the same --ttl and --autoscale.
    """
    end_with_parent()
    configure_logging()
    raise_descriptor_limit()
    quiet_grpc()
    from .serve import ServeConfig
    from .serve import serve as run

    files = credentials.tls_files(tls)
    probing, leases = options.PROBE.read(probe), options.TTL.read(ttl)
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
            replace(files, ca=probing.ca or files.ca), probing.token_file, insecure=insecure
        ),
        manager=ManagerConfig(
            ttl_s=leases.seconds,
            leader_ttl_s=leases.leader,
            admission=admission,
            autoscale=options.autoscale_config(autoscale),
        ),
    )

    def announce(url: str, address: str) -> None:
        typer.echo(f"coordinator ready: {url} manager {address}")

    limit_pauses()
    with stop_on_signals() as stop:
        run(config, stop, announce)


@app.command()
def acl(
    service: Annotated[str, typer.Option(help="Name of the service.")],
    password_file: options.PasswordFile = None,
) -> None:
    """Print the Redis users of a service: teachers, readers, students, agents, fleets, managers.

    Put the lines into the `aclfile` of Redis 7 or Valkey. They contain hashes, never passwords. A
    user without a password file gets a placeholder, which Redis refuses to load.
    """
    from .registry.acl import AGENT, FLEET, MANAGER, READER, STUDENT, rules, teacher
    from .store.redis_url import read_password

    files = options.PASSWORD_FILE.read(password_file)
    password_files = {
        teacher(service): files.teacher,
        READER: files.reader,
        STUDENT: files.student,
        AGENT: files.agent,
        FLEET: files.fleet,
        MANAGER: files.manager,
    }
    secrets = {
        user: read_password(str(path)) for user, path in password_files.items() if path is not None
    }
    for line in rules(service, secrets):
        typer.echo(line)


def limit_pauses() -> None:
    """Shorten the time for which one thread delays the others.

    Threads switch more often, and full garbage collections become rare. With thousands of teachers,
    a full collection stops all threads for longer than an assignment may take. It is hardly needed:
    reference counting frees what the manager drops. Collections of young objects go on.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
