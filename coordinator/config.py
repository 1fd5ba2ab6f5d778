"""Settings of a service manager, and which addresses it may listen on."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from dataclasses import dataclass, field

from ..runtime.errors import AddressInUse, UsageError
from ..scheduler.autoscale import AutoscaleConfig

#: Where a mesh is looked for when nobody names one.
DEFAULT_URL = "redis://127.0.0.1:6379"
#: Seconds without a beat after which a member is dead.
DEFAULT_TTL_S = 6.0
#: Seconds after which another manager may lead a service whose leader does not prolong its lease.
DEFAULT_LEADER_TTL_S = 2.0


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Settings of one service manager.

    Attributes:
        ttl_s: seconds without a report after which a student is gone; also its own lease's TTL.
        leader_ttl_s: seconds that its lease on leading a service lasts without being prolonged.
        admission: teachers are probed before students hear of them.
        sweep_s: seconds between two looks at the registry, unless a deadline passes before.
        outage_sweep_s: the same while the registry does not answer.
        autoscale: how each service is scaled for which nobody says it otherwise.
    """

    ttl_s: float = DEFAULT_TTL_S
    leader_ttl_s: float = DEFAULT_LEADER_TTL_S
    admission: bool = True
    sweep_s: float = 0.1
    outage_sweep_s: float = 0.5
    autoscale: AutoscaleConfig = field(default_factory=AutoscaleConfig)

    def __post_init__(self) -> None:
        if not 0.1 <= self.ttl_s <= 3600:
            raise UsageError(f"a TTL is between 0.1 and 3600 seconds, not {self.ttl_s:g}")
        if not 0.3 <= self.leader_ttl_s <= 60:
            raise UsageError(
                f"a leader's TTL is between 0.3 and 60 seconds, not {self.leader_ttl_s:g}"
            )
        if not 0 < self.sweep_s <= self.ttl_s:
            raise UsageError(f"sweep_s must be above 0 and at most the TTL, not {self.sweep_s:g}")
        if not self.sweep_s < self.leader_ttl_s / 2:
            raise UsageError(
                f"sweep_s must be below half of the leader's TTL, not {self.sweep_s:g}: "
                "a leader prolongs its lease as it sweeps"
            )


def autoscale_config(
    least: int,
    most: int,
    freeze_s: float,
    up_after_s: float,
    down_after_s: float,
    idle_to_zero_s: float,
    price: float,
    ceiling: float | None,
) -> AutoscaleConfig:
    """The settings of autoscaling as flags say them; raises UsageError where they make no sense."""
    try:
        return AutoscaleConfig(
            least, most, freeze_s, up_after_s, down_after_s, idle_to_zero_s, price, ceiling
        )
    except ValueError as error:
        raise UsageError(f"autoscaling: {error}") from None


def check_free(host: str, port: int, option: str = "--listen") -> None:
    """Find out, before gRPC does and prints it, whether one can listen there; raises as `bound`."""
    bound(host, port, option).close()


def bound(host: str, port: int, option: str = "--listen") -> socket.socket:
    """A socket that has the address, and does not listen yet.

    Args:
        host: an address of this machine.
        port: 0 for any.
        option: what names the port on the command line.

    Raises:
        UsageError: `host` is no address of this machine.
        AddressInUse: another process listens on `port`.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as undo:
            made = undo.enter_context(socket.socket(family, kind))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            undo.pop_all()
            return made
    except PermissionError:
        raise UsageError(f"port {port} is only for root: choose one from 1024 on") from None
    except OSError as error:
        where = join_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"another process listens on {where}: choose another port with {option}, 0 for any"
            ) from None
        raise UsageError(f"cannot listen on {where}: {error.strerror or error}") from None


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for all addresses of this machine, and so names none."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def named_by_address(host: str) -> str:
    """A host to advertise; with `*.` before it our own address, dashes in it, stands for the star.

    So does the DNS of a Kubernetes cluster name pods (`10-1-2-3.NAMESPACE.pod`), and so one
    certificate for `*.NAMESPACE.pod` holds for all of them.

    Raises:
        UsageError: this machine's name has no address that others could reach.
    """
    if not host.startswith("*."):
        return host
    own = socket.gethostname()
    with contextlib.suppress(OSError):
        told = socket.getaddrinfo(own, None, type=socket.SOCK_STREAM)
        own_ones = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in told]
        # Of a pod with both, the one of IPv4: the cluster's DNS has names of its first kind alone.
        for found in sorted(own_ones, key=lambda one: one.version):
            if not (found.is_loopback or found.is_link_local):
                return str(found).replace(".", "-").replace(":", "-") + host[1:]
    raise UsageError(
        f"--advertise {host} asks for our own address, and {own}, as this machine is called, has "
        "none but loopback: advertise a name or an address that others reach"
    )


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
