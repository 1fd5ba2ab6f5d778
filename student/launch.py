"""The environment of a node: variables of its launcher, its address, free ports.

Launchers are Kubernetes, torchrun, Paddle's launch, MPI and Slurm. One process of
`edl student train` is one node. Some launchers start a process for each GPU, such as torchrun with
`--nproc-per-node 8`. Then each process is a node, and its ranks see only one GPU, chosen by the
local rank of the process.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..coordinator.store.redis_url import parse
from ..runtime.addresses import join_address
from ..runtime.errors import AddressInUse, UsageError

#: Variables with the number of this process, from 0. Here and below, the first one set is used.
_NUMBERS: Final = (
    "RANK",
    "PADDLE_TRAINER_ID",
    "JOB_COMPLETION_INDEX",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
)
_COUNTS: Final = (
    "WORLD_SIZE",
    "PADDLE_TRAINERS_NUM",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
)
_LOCAL_NUMBERS: Final = (
    "LOCAL_RANK",
    "PADDLE_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
_LOCAL_COUNTS: Final = (
    "LOCAL_WORLD_SIZE",
    "PADDLE_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)
_MAX_NAME_LENGTH: Final = 64
#: Variable with the visible GPUs.
VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """This node, as the environment describes it.

    Attributes:
        name: readable prefix of the node's id.
        number: its number among the nodes started together, from 0; None: no known launcher.
        count: number of nodes started together; None: unknown.
        host: the node's address, if the launcher names one; else empty.
        gpus: `CUDA_VISIBLE_DEVICES` of its ranks; empty: that of this process.
    """

    name: str
    number: int | None = None
    count: int | None = None
    host: str = ""
    gpus: str = ""

    def node_id(self) -> str:
        """Return a new random id: a restarted node counts as another node."""
        return f"{self.name}-{secrets.token_hex(3)}"


def read_launcher(environment: Mapping[str, str], hostname: str) -> LaunchInfo:
    """Read the variables of a launcher.

    Args:
        environment: variables of this process.
        hostname: name of this machine.

    Raises:
        UsageError: a variable that should hold a number does not.
    """
    number, count, local, local_count = (
        _number(environment, names) for names in (_NUMBERS, _COUNTS, _LOCAL_NUMBERS, _LOCAL_COUNTS)
    )
    name = environment.get("HOSTNAME") or hostname or "node"
    if number is not None:
        name = f"{name}-{number}"
    gpus = ""
    if local is not None and (local_count or 1) > 1:
        visible = [gpu for gpu in environment.get(VISIBLE_GPUS, "").split(",") if gpu]
        gpus = visible[local % len(visible)] if visible else str(local)
    return LaunchInfo(
        re.sub(r"[^A-Za-z0-9._-]", "-", name)[:_MAX_NAME_LENGTH],
        number,
        count,
        environment.get("POD_IP", ""),
        gpus,
    )


def nodes_of(text: str, launch: LaunchInfo) -> tuple[int, int]:
    """Parse `--nodes MIN:MAX`; by default, as many nodes as the launcher has started, or 1.

    Raises:
        UsageError: it is neither N nor MIN:MAX.
    """
    if not text:
        return (1, 1) if launch.count is None else (launch.count, launch.count)
    least, colon, most = text.partition(":")
    try:
        return int(least), int(most if colon else least)
    except ValueError:
        raise UsageError(f"--nodes is N or MIN:MAX, as in 1:4, not {text!r}") from None


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Return the value of the first variable that is set; None: none is."""
    for name in names:
        if value := environment.get(name, ""):
            if not value.isdigit():
                raise UsageError(f"{name}={value!r} in the environment should be a number")
            return int(value)
    return None


LOOPBACK: Final = "127.0.0.1"


def own_address(coordinator: str | None) -> str:
    """Return the local address of connections to the coordinator.

    Loopback if there is no coordinator, or no route to it.

    Args:
        coordinator: Redis URL; None: there is no coordinator.

    Raises:
        UsageError: the URL is invalid.
    """
    hosts = parse(coordinator).hosts if coordinator else ()
    for host, port in hosts:
        with contextlib.suppress(OSError):  # the name cannot be resolved, or there is no route
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # with UDP, this sends nothing
                return str(probe.getsockname()[0])
    return LOOPBACK


def free_endpoints(host: str, count: int) -> tuple[str, ...]:
    """Return `count` different addresses host:port whose ports are free now.

    The ports are from 10,000 on and below those that the system uses for outgoing connections, if
    there are such ports. An outgoing connection might take another port before a rank listens.

    Raises:
        UsageError: `host` is not an address of this machine.
        AddressInUse: fewer than `count` of these ports are free.
    """
    endpoints: list[str] = []
    try:
        with contextlib.ExitStack() as open_sockets:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), 0, type=socket.SOCK_STREAM
            )[0]
            for port in _rank_ports(count):
                probe = open_sockets.enter_context(socket.socket(family, kind, protocol))
                try:
                    probe.bind((address[0], port, *address[2:]))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    probe.close()
                    continue
                endpoints.append(join_address(host, probe.getsockname()[1]))
                if len(endpoints) == count:
                    return tuple(endpoints)
    except OSError as error:
        raise UsageError(
            f"ranks cannot listen at {host!r}: {error.strerror or error}; give --advertise an"
            " address of this machine"
        ) from error
    raise AddressInUse(
        f"ranks cannot listen at {host!r}: {len(endpoints)} ports are free, {count} are needed; end"
        " programs that hold ports, or raise the start of net.ipv4.ip_local_port_range"
    )


def _rank_ports(count: int) -> list[int]:
    """Return the ports from 10,000 on and below those of outgoing connections, shuffled.

    If there are none, return `count` zeros: the system chooses.
    """
    lowest, first_outgoing = 10_000, 32_768
    with contextlib.suppress(OSError):
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = list(range(lowest, first_outgoing))
    secrets.SystemRandom().shuffle(ports)
    return ports or [0] * count
