"""Settings of a service manager, and its addresses."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from dataclasses import dataclass, field

from ..runtime.errors import AddressInUse, UsageError
from ..scheduler.autoscale import AutoscaleConfig

#: Redis URL of a mesh if none is named.
DEFAULT_URL = "redis://127.0.0.1:6379"
#: Seconds without a heartbeat after which a member is dead.
DEFAULT_TTL_S = 6.0
#: Seconds after which another manager may lead a service whose leader does not renew its lease.
DEFAULT_LEADER_TTL_S = 2.0


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Settings of one service manager.

    Attributes:
        ttl_s: seconds without a report after which a student is gone; also the TTL of the manager's
            own lease.
        leader_ttl_s: seconds for which its lease as leader of a service is valid unless renewed.
        admission: probe teachers before students get them.
        sweep_s: seconds between reads of the registry, unless a deadline passes earlier.
        outage_sweep_s: the same while the registry does not answer.
        autoscale: autoscaling of services whose deployment does not say otherwise.
    """

    ttl_s: float = DEFAULT_TTL_S
    leader_ttl_s: float = DEFAULT_LEADER_TTL_S
    admission: bool = True
    sweep_s: float = 0.1
    outage_sweep_s: float = 0.5
    autoscale: AutoscaleConfig = field(default_factory=AutoscaleConfig)

    def __post_init__(self) -> None:
        if not 0.1 <= self.ttl_s <= 3600:
            raise UsageError(f"a TTL must be between 0.1 and 3600 seconds, not {self.ttl_s:g}")
        if not 0.3 <= self.leader_ttl_s <= 60:
            raise UsageError(
                f"a leader's TTL must be between 0.3 and 60 seconds, not {self.leader_ttl_s:g}"
            )
        if not 0 < self.sweep_s <= self.ttl_s:
            raise UsageError(f"sweep_s must be above 0 and at most the TTL, not {self.sweep_s:g}")
        if not self.sweep_s < self.leader_ttl_s / 2:
            raise UsageError(
                f"sweep_s must be below half of the leader's TTL, not {self.sweep_s:g}: "
                "a leader renews its lease with each sweep"
            )


def check_free(host: str, port: int) -> None:
    """Check that one can listen on an address, before gRPC tries it; raise errors as `bound`."""
    bound(host, port).close()


def bound(host: str, port: int, option: str = "--listen") -> socket.socket:
    """Return a TCP socket that is bound to an address but does not listen yet.

    Args:
        host: an address of this machine.
        port: TCP port; 0: any free one.
        option: option of the port, for error messages.

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
        raise UsageError(f"port {port} requires root: choose 1024 or above") from None
    except OSError as error:
        where = join_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"another process listens on {where}: choose another port with {option}, or 0 for"
                " any free one"
            ) from None
        raise UsageError(f"cannot listen on {where}: {error.strerror or error}") from None


def is_wildcard(host: str) -> bool:
    """Return whether `host` is a wildcard address, such as 0.0.0.0."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def named_by_address(host: str) -> str:
    """Return the host to advertise; replace the star of `*.NAME` by our address with dashes.

    The DNS of Kubernetes names pods so (`10-1-2-3.NAMESPACE.pod`), and one certificate for
    `*.NAMESPACE.pod` is valid for all of them.

    Raises:
        UsageError: the host name of this machine only has addresses that others cannot reach.
    """
    if not host.startswith("*."):
        return host
    own = socket.gethostname()
    with contextlib.suppress(OSError):
        told = socket.getaddrinfo(own, None, type=socket.SOCK_STREAM)
        own_ones = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in told]
        # IPv4 first: the DNS of a dual-stack cluster has only names of the first address family.
        for found in sorted(own_ones, key=lambda one: one.version):
            if not (found.is_loopback or found.is_link_local):
                return str(found).replace(".", "-").replace(":", "-") + host[1:]
    raise UsageError(
        f"--advertise {host} needs an address of this machine, but its name {own} only has "
        "loopback addresses: advertise a name or an address that others can reach"
    )


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
