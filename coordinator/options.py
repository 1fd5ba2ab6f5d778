"""The options of `edl coordinator serve`, with help, limits and environment variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from .config import join_address

_LISTENING = "Addresses"
_LEASES = "Leases"
_SECURITY = "Security"
_SCALING = "Autoscaling (of services without a deployment)"

Redis = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_REDIS",
        help="Use the Redis or Valkey at this URL: redis://, rediss:// (TLS), unix://, "
        "redis+sentinel://host:port,.../MASTER. Default: start one.",
    ),
]
RedisPort = Annotated[
    int | None,
    typer.Option(
        envvar="EDL_REDIS_PORT",
        min=0,
        max=65535,
        help="Port of the started Redis; 0: any free one. Default: 6379, or any if taken.",
    ),
]


class ListenAddress(NamedTuple):
    """Address of a server; port 0: any free one."""

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
#: Arguments that all options for the address of a server share.
LISTEN: Final[dict[str, Any]] = {
    "envvar": "EDL_LISTEN",
    "metavar": "[HOST:][PORT]",
    "parser": ListenAddress.parse,
    "show_default": "127.0.0.1, any free port",
}
Listen = Annotated[
    ListenAddress,
    typer.Option("--listen", help="Listen on this address.", rich_help_panel=_LISTENING, **LISTEN),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_ADVERTISE",
        help="Host name or address of this machine for others. In *.NAME, the star is replaced by "
        "our address with dashes, as in the names of Kubernetes pods. Default: that of --listen.",
        rich_help_panel=_LISTENING,
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_METRICS_LISTEN",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics on this address; PORT alone: on loopback. Default: none.",
        rich_help_panel=_LISTENING,
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_HTTP",
        metavar="[HOST:]PORT",
        help="Serve the live page on this address; PORT alone: on loopback. Default: none.",
        rich_help_panel=_LISTENING,
    ),
]
Ttl = Annotated[
    float,
    typer.Option(
        envvar="EDL_TTL",
        help="Seconds without a heartbeat after which a member is dead.",
        rich_help_panel=_LEASES,
    ),
]
LeaderTtl = Annotated[
    float,
    typer.Option(
        envvar="EDL_LEADER_TTL",
        help="Seconds after which another manager takes over from a dead leader.",
        rich_help_panel=_LEASES,
    ),
]
Admission = Annotated[
    bool,
    typer.Option(
        "--admission/--no-admission",
        envvar="EDL_ADMISSION",
        help="Call each teacher at its address and verify its identity before it is assigned to "
        "students.",
        rich_help_panel=_SECURITY,
    ),
]
ProbeCa = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_PROBE_CA",
        help="CA certificates of the teachers, in PEM form. Default: that of --tls.",
        rich_help_panel=_SECURITY,
    ),
]
ProbeTokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="EDL_PROBE_TOKEN_FILE",
        help="File with the bearer token for teachers that require one. Default: none.",
        rich_help_panel=_SECURITY,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow other machines to connect without credentials.",
        rich_help_panel=_SECURITY,
    ),
]
MinTeachers = Annotated[
    int,
    typer.Option(
        envvar="EDL_MIN_TEACHERS",
        min=0,
        help="Least number of teachers of a service that has students.",
        rich_help_panel=_SCALING,
    ),
]
MaxTeachers = Annotated[
    int,
    typer.Option(
        envvar="EDL_MAX_TEACHERS",
        min=0,
        help="Greatest number of teachers of a service.",
        rich_help_panel=_SCALING,
    ),
]
Freeze = Annotated[
    float,
    typer.Option(
        envvar="EDL_FREEZE",
        help="Seconds for which the desired number stays after a change.",
        rich_help_panel=_SCALING,
    ),
]
UpAfter = Annotated[
    float,
    typer.Option(
        envvar="EDL_UP_AFTER",
        help="Scale up after more teachers were needed for this many seconds; at once if students "
        "starve.",
        rich_help_panel=_SCALING,
    ),
]
DownAfter = Annotated[
    float,
    typer.Option(
        envvar="EDL_DOWN_AFTER",
        help="Scale down after fewer teachers were enough for this many seconds.",
        rich_help_panel=_SCALING,
    ),
]
IdleToZero = Annotated[
    float,
    typer.Option(
        envvar="EDL_IDLE_TO_ZERO",
        help="Scale to zero after this many seconds without a student.",
        rich_help_panel=_SCALING,
    ),
]
TeacherPrice = Annotated[
    float,
    typer.Option(
        envvar="EDL_TEACHER_PRICE",
        min=0,
        help="Price of a teacher per hour, for --cost-ceiling.",
        rich_help_panel=_SCALING,
    ),
]
CostCeiling = Annotated[
    float | None,
    typer.Option(
        envvar="EDL_COST_CEILING",
        min=0,
        help="Most that all teachers of a service may cost per hour. Default: no limit.",
        rich_help_panel=_SCALING,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log debug records and show tracebacks.")]
