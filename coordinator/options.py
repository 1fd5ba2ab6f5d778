"""The options of `edl coordinator`, with help, limits and environment variables."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from ..runtime.addresses import join_address
from ..runtime.errors import UsageError
from ..runtime.structured_option import Given, Key, StructuredOption
from ..scheduler.autoscale import AutoscaleConfig
from .config import DEFAULT_LEADER_TTL_S, DEFAULT_TTL_S

log = logging.getLogger(__name__)

_DEFAULTS: Final = AutoscaleConfig()

_ADDRESSES_PANEL = "Addresses"
_SECURITY_PANEL = "Security"

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
        help="Port of the started Redis; 0: any free one. Default: 6379, or any free one if taken.",
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
        is_ipv6_without_port = text.strip("[]").count(":") > 1 and not host.endswith("]")
        if is_ipv6_without_port or (not colon and not text.isdecimal()):
            host, port = text, ""
        if not text or not re.fullmatch(r"\d{0,5}", port, re.ASCII) or int(port or 0) > 65535:
            raise typer.BadParameter(f"expects HOST, PORT or HOST:PORT, got {text!r:.80}")
        return cls(host.strip("[]") or cls().host, int(port or 0))

    def __str__(self) -> str:
        return join_address(self.host, self.port)


DEFAULT_LISTEN: Final = ListenAddress()
#: Help text that options for the address of a server share.
BEYOND_LOOPBACK: Final = (
    "Addresses beyond loopback need credentials (--tokens, or ca= of --tls), or --insecure."
)
#: Arguments that all options for the address of a server share.
LISTEN: Final[dict[str, Any]] = {
    "envvar": "EDL_LISTEN",
    "metavar": "[HOST:][PORT]",
    "parser": ListenAddress.parse,
    "show_default": "127.0.0.1, any free port",
}
Listen = Annotated[
    ListenAddress,
    typer.Option(
        "--listen",
        help=f"Address of the gRPC server, and host of a started Redis. {BEYOND_LOOPBACK}",
        rich_help_panel=_ADDRESSES_PANEL,
        **LISTEN,
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_ADVERTISE",
        help="Host name or address at which others reach this machine. In *.NAME, this machine's "
        "IP address replaces the star, as in 10-0-0-5.NAME, the form for Kubernetes pods. Default: "
        "the host of --listen, or this machine's name if --listen is a wildcard.",
        rich_help_panel=_ADDRESSES_PANEL,
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_METRICS_LISTEN",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics on this address; PORT alone: on loopback. Beyond loopback, "
        "with --tokens, Prometheus needs the token of a viewer or an admin. Default: none.",
        rich_help_panel=_ADDRESSES_PANEL,
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_HTTP",
        metavar="[HOST:]PORT",
        help="Serve the live page on this address; PORT alone: on loopback. Default: none.",
        rich_help_panel=_ADDRESSES_PANEL,
    ),
]


_seconds = partial(Key, metavar="SECONDS")


@dataclass(frozen=True, slots=True)
class TtlKeys:
    """Keys of `--ttl`."""

    seconds: Annotated[
        float,
        Key("time without a heartbeat after which a student or manager counts as lost.", "EDL_TTL"),
    ] = DEFAULT_TTL_S
    leader: Annotated[
        float,
        _seconds(
            "seconds after which another manager takes over from a dead leader.", "EDL_LEADER_TTL"
        ),
    ] = DEFAULT_LEADER_TTL_S


TTL: Final = StructuredOption("--ttl", TtlKeys, first="seconds")
Ttl = Annotated[list[Given] | None, TTL.option(panel="Leases")]
Admission = Annotated[
    bool,
    typer.Option(
        "--admission/--no-admission",
        envvar="EDL_ADMISSION",
        help="Call each teacher at its address and verify its identity before it is assigned to "
        "students.",
        rich_help_panel=_SECURITY_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class TeacherProbeKeys:
    """Keys of `--probe`."""

    ca: Annotated[
        Path | None,
        Key("CA certificates of the teachers. Default: ca= of --tls.", "EDL_PROBE_CA"),
    ] = None
    token_file: Annotated[
        Path | None,
        Key("file with the bearer token for teachers that require one.", "EDL_PROBE_TOKEN_FILE"),
    ] = None


PROBE: Final = StructuredOption("--probe", TeacherProbeKeys)
Probe = Annotated[
    list[Given] | None,
    PROBE.option("Credentials for the calls that verify teachers.", panel=_SECURITY_PANEL),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow --listen beyond loopback without credentials, and --http and --metrics-listen "
        "without --tokens.",
        rich_help_panel=_SECURITY_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class AutoscaleKeys:
    """Keys of `--autoscale`."""

    min: Annotated[
        int,
        Key("least number of teachers of a service that has students.", "EDL_MIN_TEACHERS"),
    ] = _DEFAULTS.min
    max: Annotated[int, Key("greatest number of teachers of a service.", "EDL_MAX_TEACHERS")] = (
        _DEFAULTS.max
    )
    freeze: Annotated[
        float,
        _seconds("shortest time between two changes of the desired number.", "EDL_FREEZE"),
    ] = _DEFAULTS.freeze_s
    up_after: Annotated[
        float,
        _seconds(
            "scale up after more teachers were needed for this many seconds; at once if students "
            "starve.",
            "EDL_UP_AFTER",
        ),
    ] = _DEFAULTS.up_after_s
    down_after: Annotated[
        float,
        _seconds(
            "scale down after fewer teachers were enough for this many seconds.", "EDL_DOWN_AFTER"
        ),
    ] = _DEFAULTS.down_after_s
    idle_to_zero: Annotated[
        float,
        _seconds("scale to zero after this many seconds without a student.", "EDL_IDLE_TO_ZERO"),
    ] = _DEFAULTS.idle_to_zero_s
    price: Annotated[
        float, Key("price of a teacher per hour, for cost-ceiling.", "EDL_TEACHER_PRICE")
    ] = _DEFAULTS.price_per_teacher_hour
    cost_ceiling: Annotated[
        float | None,
        Key("most that all teachers of a service may cost per hour.", "EDL_COST_CEILING"),
    ] = None


AUTOSCALE: Final = StructuredOption("--autoscale", AutoscaleKeys)
Autoscale = Annotated[
    list[Given] | None,
    AUTOSCALE.option(
        "How many teachers a service should have, as in max=16. A service that 'edl apply' has "
        "deployed has its own min, max and freeze, and may have its own price and cost-ceiling.",
        panel="Autoscaling",
    ),
]


def autoscale_config(given: Sequence[Given] | None) -> AutoscaleConfig:
    """Return settings of autoscaling from --autoscale; raise UsageError if they are invalid."""
    keys = AUTOSCALE.read(given)
    if keys.cost_ceiling is not None and not keys.price:
        log.warning("--autoscale cost-ceiling: it has no effect on services without a price")
    try:
        return AutoscaleConfig(
            min=keys.min,
            max=keys.max,
            freeze_s=keys.freeze,
            up_after_s=keys.up_after,
            down_after_s=keys.down_after,
            idle_to_zero_s=keys.idle_to_zero,
            price_per_teacher_hour=keys.price,
            cost_ceiling_per_hour=keys.cost_ceiling,
        )
    except ValueError as error:
        raise UsageError(f"--autoscale: {error}") from None


@dataclass(frozen=True, slots=True)
class PasswordKeys:
    """Keys of `--password-file`: a file for each Redis user of a service."""

    teacher: Annotated[Path | None, Key("of the service's teachers.")] = None
    reader: Annotated[Path | None, Key("of readers.")] = None
    student: Annotated[Path | None, Key("of nodes of trainings.")] = None
    agent: Annotated[Path | None, Key("of machines with agents.")] = None
    fleet: Annotated[Path | None, Key("of fleets and of users who submit jobs.")] = None
    manager: Annotated[Path | None, Key("of service managers.")] = None


PASSWORD_FILE: Final = StructuredOption("--password-file", PasswordKeys)
PasswordFile = Annotated[
    list[Given] | None,
    PASSWORD_FILE.option("Files with passwords of Redis users, as in teacher=FILE,reader=FILE."),
]
