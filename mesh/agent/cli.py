"""The commands `edl agent`, `edl agent yield` and `edl agent jobs`."""

from __future__ import annotations

import os
import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from ...coordinator.ops.options import Mesh, mesh_context, quiet_grpc, source_of
from ...coordinator.options import BEYOND_LOOPBACK, DEFAULT_LISTEN, LISTEN, ListenAddress
from ...proto.security.options import Tls, Tokens, server_security, tls_files, tls_words
from ...runtime.errors import UsageError
from ...runtime.lifecycle import raise_descriptor_limit, stop_on_signals
from ...runtime.logs import configure_logging
from ...runtime.structured_option import Given, Key, StructuredOption
from ...runtime.supervise import end_with_parent
from ..jobs.runner_cli import jobs
from ..local import TeacherSpec
from ..output import cache_folder

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_LENDING = "When the machine is given back"
_TEACHERS = "Teachers of this machine"
_LOCAL = "Teachers of one service, as many as it needs (--local)"
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
#: Seconds that `edl agent yield` waits in addition to the grace period of teachers.
_YIELD_MARGIN_S: Final = 15.0

Name = Annotated[
    str | None,
    typer.Option(
        "--machine",
        envvar="EDL_MACHINE",
        help="Name of this machine in the mesh, and of its teachers. Default: the host name.",
    ),
]
AgentName = Annotated[
    str | None,
    typer.Option(
        "--machine",
        envvar="EDL_MACHINE",
        help="The agent's --machine. Default: all agents that run here.",
    ),
]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar="EDL_CACHE",
        file_okay=False,
        show_default="~/.cache/edl-dist/agent",
        help="Folder of the agent's --cache.",
    ),
]


@dataclass(frozen=True, slots=True)
class CacheKeys:
    """Keys of `--cache` of `edl agent`."""

    folder: Annotated[
        Path | None, Key("of the models. Default: ~/.cache/edl-dist/agent.", "EDL_CACHE")
    ] = None
    gib: Annotated[
        float | None,
        Key(
            "size limit; above it, the least recently used models are removed, except those used"
            " in the last hour. Default: none.",
            at_least=0.001,
        ),
    ] = None


CACHE: Final = StructuredOption("--cache", CacheKeys, first="folder")


@dataclass(frozen=True, slots=True)
class LoadKeys:
    """Keys of `--load`."""

    cores: Annotated[
        float | None,
        Key("CPU cores that other processes may keep busy. Default: any number.", "EDL_AGENT_LOAD"),
    ] = None
    quiet: Annotated[
        float,
        Key(
            "seconds with less than half of that load before the machine is lent again.",
            at_least=0,
            metavar="SECONDS",
        ),
    ] = 30.0


LOAD: Final = StructuredOption("--load", LoadKeys, first="cores")


@dataclass(frozen=True, slots=True)
class TeachersKeys:
    """Keys of `--teachers`."""

    min: Annotated[int, Key("least number while the service needs any teacher.", at_least=0)] = 0
    max: Annotated[int | None, Key("greatest number. Default: one per core.", at_least=0)] = None


TEACHERS: Final = StructuredOption("--teachers", TeachersKeys)


@app.callback(invoke_without_command=True)
def agent(
    ctx: typer.Context,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            rich_help_panel=_LOCAL,
            help="Run teachers of --service on this machine, without registering the machine.",
        ),
    ] = False,
    service: Annotated[
        str, typer.Option(rich_help_panel=_LOCAL, show_default=False, help="Name of the service.")
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            rich_help_panel=_LOCAL, show_default=False, help="As --model of 'edl teacher serve'."
        ),
    ] = "",
    teachers: Annotated[
        list[Given] | None, TEACHERS.option("Number of teachers, as in max=4.", panel=_LOCAL)
    ] = None,
    teacher_options: Annotated[
        str,
        typer.Option(
            "--teacher-options",
            metavar="OPTIONS",
            rich_help_panel=_LOCAL,
            show_default=False,
            help="Further options of 'edl teacher serve', as in a shell, after '--threads 1"
            " --micro-batch 8'.",
        ),
    ] = "",
    context: Mesh = None,
    machine: Name = None,
    devices: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_DEVICES",
            help="Devices of the teacher: cpu, cpu:CORES, gpu:N, separated by commas. Default: all "
            "GPUs, or all cores if there is no GPU.",
        ),
    ] = None,
    cache: Annotated[list[Given] | None, CACHE.option("Where fetched models are kept.")] = None,
    load: Annotated[
        list[Given] | None,
        LOAD.option(
            "Give the machine back while other processes need it, as in 4,quiet=60.", panel=_LENDING
        ),
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(
            min=0.5,
            envvar="EDL_TTL",
            help="Seconds without a heartbeat after which the machine or its teacher counts as"
            " lost.",
        ),
    ] = 6.0,
    grace: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="EDL_GRACE",
            rich_help_panel=_TEACHERS,
            help="Seconds that draining a teacher may take.",
        ),
    ] = 30.0,
    listen: Annotated[
        ListenAddress,
        typer.Option(
            "--listen",
            rich_help_panel=_TEACHERS,
            help=f"Address of the teacher's gRPC server. {BEYOND_LOOPBACK}",
            **LISTEN,
        ),
    ] = DEFAULT_LISTEN,
    advertise: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_ADVERTISE",
            rich_help_panel=_TEACHERS,
            help="Host name or address at which students reach the teacher. Default: that of"
            " --listen, or this machine's name if that is a wildcard.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            rich_help_panel=_TEACHERS,
            help="Allow --listen beyond loopback without credentials.",
        ),
    ] = False,
    tls: Tls = None,
    tokens: Tokens = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, rich_help_panel=_TEACHERS, help="Folder for the output of teachers."
        ),
    ] = None,
) -> None:
    """Lend this machine to the mesh: it registers and runs a teacher of a service that needs one.

    `edl apply` deploys services; only their declared content is served. SIGTERM and Ctrl-C drain
    the teacher. `edl agent yield` gives the machine back to its owner.

    With --local it starts teachers of one service when students need them, replaces teachers that
    die, and drains teachers that are no longer needed: all of them if there is no student.
    """
    if ctx.invoked_subcommand is not None:
        return
    _check_mode(ctx, local)
    if local:
        end_with_parent(grace + 10.0)
    else:
        end_with_parent()
    configure_logging()
    if logs is not None:
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--logs {logs} cannot be created: {error.strerror}") from None
    mesh = mesh_context(context)
    if local:
        from .teacher_fleet import run_local_fleet

        try:
            words = tuple(shlex.split(teacher_options))
        except ValueError as error:
            raise UsageError(f"--teacher-options: {error}") from None
        spec = TeacherSpec(service, model, ttl_s=ttl, grace_s=grace, options=words)
        count = TEACHERS.read(teachers)
        raise_descriptor_limit()
        quiet_grpc()
        with stop_on_signals() as stop:
            run_local_fleet(spec, mesh, count.min, count.max, logs, stop, typer.echo)
        return
    from ...proto.security.credentials import check_exposure
    from ...teacher.config import check_cores, parse_devices
    from .agent import run_agent
    from .hardware import find_devices
    from .lending import LendingConfig
    from .settings import AgentSettings

    files, cache_keys, load_keys = tls_files(tls), CACHE.read(cache), LOAD.read(load)
    security = server_security(files, tokens)
    check_exposure(listen.host, security, insecure, "a teacher of this machine")
    parsed_devices = parse_devices(",".join(find_devices()) if devices is None else devices)
    check_cores(parsed_devices)
    addresses = {"listen": listen, "advertise": advertise, "tokens": tokens}
    options = [f"--{name}={value}" for name, value in addresses.items() if value is not None]
    options += [*tls_words(files), *(["--insecure"] if insecure else [])]
    settings = AgentSettings(
        coordinator=mesh.coordinator,
        machine_id=machine or default_name(),
        devices=tuple(map(str, parsed_devices)),
        cache=(cache_keys.folder or cache_folder("agent")).expanduser().absolute(),
        cache_bytes=None if cache_keys.gib is None else round(cache_keys.gib * (1 << 30)),
        ttl_s=ttl,
        lending=LendingConfig(load_keys.cores, load_keys.quiet),
        grace_s=grace,
        teacher_options=tuple(options),
        log_dir=logs,
    )
    with stop_on_signals() as stop:
        run_agent(settings, stop, typer.echo)


#: Parameters that need --local, and parameters that are invalid with it.
_LOCAL_ONLY: Final = ("service", "model", "teachers", "teacher_options")
_MACHINE_ONLY: Final = (
    *("machine", "devices", "cache", "load", "listen", "advertise"),
    *("insecure", "tls", "tokens"),
)


def _check_mode(ctx: typer.Context, local: bool) -> None:
    """Raise UsageError for missing options, and for command-line options of the other mode."""
    invalid = _MACHINE_ONLY if local else _LOCAL_ONLY
    given = [name for name in invalid if source_of(ctx, name) == "COMMANDLINE"]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(
            f"{options}: not with --local" if local else f"{options}: with --local only"
        )
    if local and not (ctx.params["service"] and ctx.params["model"]):
        raise UsageError("--local needs --service and --model")


app.command("jobs")(jobs)


@app.command("yield")
def yield_(
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="How long: 90s, 10m, 2h or 1d. Default: until --end."
        ),
    ] = None,
    end: Annotated[
        bool, typer.Option("--end", help="Lend this machine again, before the time is over.")
    ] = False,
    machine: AgentName = None,
    cache: CacheFolder = None,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Seconds to wait until the machine is free; 0: do not wait. Default: 15"
            " more than EDL_GRACE, or 45 if that is not set.",
        ),
    ] = None,
) -> None:
    """Give this machine back: its teacher is drained.

    Waits until the teacher has ended, at most for --wait. Needs neither coordinator nor Redis; run
    it as the user of the agent.
    """
    from .agent_directory import running_agents, wait_until_yielded

    if end and (for_ or wait is not None):
        raise UsageError("--end lends the machine again at once: leave out --for and --wait")
    for_s = None if for_ is None else parse_time(for_)
    agents = running_agents((cache or cache_folder("agent")).expanduser().absolute(), machine)
    for agent_ in agents:
        if end:
            agent_.cancel_yield()
            typer.echo(f"{agent_.machine_id} is lent to the mesh again")
        else:
            agent_.request_yield(for_s)
    if end:
        return
    if wait is None:  # EDL_GRACE is a number: the parent command `edl agent` checks its --grace
        wait = float(os.environ.get("EDL_GRACE") or 30) + _YIELD_MARGIN_S
    if wait:
        wait_until_yielded(agents, wait, typer.echo)


def parse_time(text: str) -> float:
    """Return the seconds of "90", "90s", "10m", "2h" or "1d". Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", text.strip())
    if match is None or not float(match[1]) > 0:
        raise UsageError(f"a time is written as 90s, 10m or 2h, not as {text[:80]!r}")
    return float(match[1]) * _UNITS[match[2] or "s"]


def default_name() -> str:
    """Return the host name without characters that are invalid in names."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:128] or "machine"
