"""The options of `edl coordinator serve`: their help, their limits, their environment variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from .config import join_address

_LISTENING = "Where it listens"
_LEASES = "Leases"
_SECURITY = "Security"
_SCALING = "Autoscaling (of services without a deployment that says it)"

Redis = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_REDIS",
        help="URL of a running Redis or Valkey: redis://, rediss:// (TLS), unix://, "
        "redis+sentinel://host:port,.../MASTER. Default: start one.",
    ),
]
RedisPort = Annotated[
    int | None,
    typer.Option(
        envvar="EDL_REDIS_PORT",
        min=0,
        max=65535,
        help="Port of the Redis that is started; 0: any free. Default: 6379, or any if taken.",
    ),
]


class ListenAddress(NamedTuple):
    """Where a server listens; port 0: any free one."""

    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str | ListenAddress) -> ListenAddress:
        """Parse "HOST", "PORT" or "HOST:PORT". Raises BadParameter for anything else."""
        if isinstance(text, ListenAddress):  # a default
            return text
        host, colon, port = text.rpartition(":")
        is_ipv6 = text.strip("[]").count(":") > 1 and not host.endswith("]")
        if is_ipv6 or (not colon and not text.isdecimal()):
            host, port = text, ""
        if not text or not re.fullmatch(r"\d{0,5}", port, re.ASCII) or int(port or 0) > 65535:
            raise typer.BadParameter(f"expects HOST, PORT or HOST:PORT, got {text!r:.80}")
        return cls(host.strip("[]") or cls().host, int(port or 0))

    def __str__(self) -> str:
        return join_address(self.host, self.port)


DEFAULT_LISTEN: Final = ListenAddress()
#: What all options for the address of a server share.
LISTEN: Final[dict[str, Any]] = {
    "envvar": "EDL_LISTEN",
    "metavar": "[HOST:][PORT]",
    "parser": ListenAddress.parse,
    "show_default": "127.0.0.1, any free port",
}
Listen = Annotated[
    ListenAddress,
    typer.Option("--listen", help="Address of the manager.", rich_help_panel=_LISTENING, **LISTEN),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_ADVERTISE",
        help="Host name that others reach this machine by; *.NAME puts our own address, with "
        "dashes, in the place of the star, as Kubernetes names pods.",
        rich_help_panel=_LISTENING,
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_METRICS_LISTEN",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics here; a port alone is one of this machine only.",
        rich_help_panel=_LISTENING,
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_HTTP",
        metavar="[HOST:]PORT",
        help="Serve the live page of the mesh here; a port alone is one of this machine only.",
        rich_help_panel=_LISTENING,
    ),
]
Ttl = Annotated[
    float,
    typer.Option(
        envvar="EDL_TTL",
        help="Seconds without a sign of life until a member is dead.",
        rich_help_panel=_LEASES,
    ),
]
LeaderTtl = Annotated[
    float,
    typer.Option(
        envvar="EDL_LEADER_TTL",
        help="Seconds until another manager takes over from one that leads and is dead.",
        rich_help_panel=_LEASES,
    ),
]
Admission = Annotated[
    bool,
    typer.Option(
        "--admission/--no-admission",
        envvar="EDL_ADMISSION",
        help="Call each teacher at its address before students hear of it, and have it prove "
        "who it is.",
        rich_help_panel=_SECURITY,
    ),
]
ProbeCa = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_PROBE_CA",
        help="Certificates, in PEM form, that sign those of teachers. Default: --tls-ca.",
        rich_help_panel=_SECURITY,
    ),
]
ProbeTokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_PROBE_TOKEN_FILE",
        help="File with the bearer token to call teachers with, where they ask for one.",
        rich_help_panel=_SECURITY,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond this machine without credentials.",
        rich_help_panel=_SECURITY,
    ),
]
MinTeachers = Annotated[
    int,
    typer.Option(
        envvar="EDL_MIN_TEACHERS",
        min=0,
        help="Fewest teachers desired of a service while it has a student.",
        rich_help_panel=_SCALING,
    ),
]
MaxTeachers = Annotated[
    int,
    typer.Option(
        envvar="EDL_MAX_TEACHERS",
        min=0,
        help="Most teachers desired of a service.",
        rich_help_panel=_SCALING,
    ),
]
Freeze = Annotated[
    float,
    typer.Option(
        envvar="EDL_FREEZE",
        help="Seconds for which the number desired stays after a change.",
        rich_help_panel=_SCALING,
    ),
]
UpAfter = Annotated[
    float,
    typer.Option(
        envvar="EDL_UP_AFTER",
        help="Seconds for which more must have been needed; at once when students starve.",
        rich_help_panel=_SCALING,
    ),
]
DownAfter = Annotated[
    float,
    typer.Option(
        envvar="EDL_DOWN_AFTER",
        help="Seconds for which fewer must have been enough.",
        rich_help_panel=_SCALING,
    ),
]
IdleToZero = Annotated[
    float,
    typer.Option(
        envvar="EDL_IDLE_TO_ZERO",
        help="Seconds without a student after which no teacher is desired.",
        rich_help_panel=_SCALING,
    ),
]
TeacherPrice = Annotated[
    float,
    typer.Option(
        envvar="EDL_TEACHER_PRICE",
        min=0,
        help="What a teacher costs an hour, for --cost-ceiling.",
        rich_help_panel=_SCALING,
    ),
]
CostCeiling = Annotated[
    float | None,
    typer.Option(
        envvar="EDL_COST_CEILING",
        min=0,
        help="What all teachers of a service may cost an hour. Default: anything.",
        rich_help_panel=_SCALING,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log debug records, show tracebacks.")]
