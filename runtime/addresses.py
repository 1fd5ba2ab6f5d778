"""Addresses on which servers of this machine listen, and addresses that they advertise."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from .errors import AddressInUse, UsageError

_LOOPBACK = "127.0.0.1"
#: Linux: the request for the IPv4 addresses of all interfaces, and the size of each entry.
_SIOCGIFCONF, _IFREQ_BYTES = 0x8912, 40


def split_listen(listen: str) -> tuple[str, int]:
    """Split "PORT" or "HOST:PORT" into host and port; the host defaults to 127.0.0.1.

    Raises:
        UsageError: `listen` has neither form.
    """
    host, _, port = listen.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"{listen!r} is no address to listen on: write PORT or HOST:PORT")
    return host.strip("[]") or _LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    """Return whether `host` is "localhost" or a loopback address: only this machine can reach it.

    False for any other name, even if it resolves to a loopback address.
    """
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def check_free(host: str, port: int) -> None:
    """Raise an error of `bind_socket` if no server can listen on the address.

    gRPC's own error gives no reason.
    """
    bind_socket(host, port).close()


def bind_socket(host: str, port: int, option: str = "--listen") -> socket.socket:
    """Return a TCP socket that is bound to an address but does not listen yet.

    Args:
        host: an address of this machine.
        port: TCP port; 0: any free one.
        option: the option that sets the port, for error messages.

    Raises:
        UsageError: `host` is no address of this machine, or only root may listen on `port`.
        AddressInUse: another process listens on `port`.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as undo:
            bound = undo.enter_context(socket.socket(family, kind))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            undo.pop_all()
            return bound
    except PermissionError:
        raise UsageError(f"port {port} requires root: choose 1024 or above") from None
    except UnicodeError:  # a label of the name is empty or too long
        raise UsageError(f"cannot listen on {join_address(host, port)}: invalid name") from None
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
    address = _address(host)
    return address is not None and address.is_unspecified


def is_ipv6(host: str) -> bool:
    """Return whether `host` is an IPv6 address; it may be in brackets."""
    address = _address(host)
    return address is not None and address.version == 6


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def advertised_host(host: str) -> str:
    """Return the host to advertise; in `*.NAME`, this machine's address replaces the star.

    The address is written with dashes. The DNS of Kubernetes gives pods such names
    (`10-1-2-3.NAMESPACE.pod`), and one certificate for `*.NAMESPACE.pod` is valid for all pods of a
    namespace.

    Raises:
        UsageError: the host name of this machine has no address that others can reach.
    """
    if not host.startswith("*."):
        return host
    host_name = socket.gethostname()
    with contextlib.suppress(OSError):
        infos = socket.getaddrinfo(host_name, None, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in infos]
        # IPv4 first: in a dual-stack cluster, pods have DNS names only for the cluster's first
        # address family, which mostly is IPv4.
        for address in sorted(addresses, key=lambda candidate: candidate.version):
            if not (address.is_loopback or address.is_link_local):
                return str(address).replace(".", "-").replace(":", "-") + host[1:]
    raise UsageError(
        f"--advertise {host} needs an address of this machine, but its name {host_name} has none "
        "that others can reach: advertise a name or an address that they can reach"
    )


def interface_of(host: str) -> str:
    """Return the name of the network interface with this address; empty: unknown."""
    with contextlib.suppress(OSError):
        info = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0]
        address = ipaddress.ip_address(str(info[4][0]).partition("%")[0])
        if address.is_loopback:  # other machines may resolve the name to another address
            return "lo" if is_loopback(host) else ""
        if address.version == 6:
            for line in Path("/proc/net/if_inet6").read_text().splitlines():
                if line.startswith(address.packed.hex()):
                    return line.split()[-1]
            return ""
        entries = array.array("B", bytes(_IFREQ_BYTES * 1024))
        request = struct.pack("iP", len(entries), entries.buffer_info()[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            nbytes, _ = struct.unpack("iP", fcntl.ioctl(probe, _SIOCGIFCONF, request))
        for start in range(0, nbytes, _IFREQ_BYTES):
            name, packed = struct.unpack_from("16s4x4s", entries, start)
            if packed == address.packed:
                return str(name.rstrip(b"\0").decode())
    return ""


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
