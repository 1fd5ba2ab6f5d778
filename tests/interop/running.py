"""Runs a third-party server on free loopback ports, and leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from edl.coordinator.embedded import free_port
from edl.runtime.errors import ProcessFailed
from edl.runtime.supervise import Command, Process, start

HOST = "127.0.0.1"
START_S = 90.0
ASK_S = 2.0
PAUSE_S = 0.05
#: A port may be taken between being found free and being listened on.
ATTEMPTS = 3
_SHARED_MEMORY = Path("/dev/shm")
PROGRAMS = Path(__file__).with_name("programs")
#: What this process's environment says to Python must not reach others.
_OWN = {
    "PYTHONPATH": str(PROGRAMS),
    "PYTHONSAFEPATH": "",
    "PYTHONWARNINGS": "",
    "PYTHONUNBUFFERED": "1",
}

Ports = Sequence[int]


@contextmanager
def running(
    name: str,
    argv: Callable[[Ports], tuple[str, ...]],
    ports: int,
    ready: Callable[[Ports], bool],
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[Process, Ports]]:
    """A program and the ports that it was given, once `ready(ports)` holds.

    Raises:
        ProcessFailed: it ended, on other ports too, or was not ready in time; its last words are
            the exception's notes.
    """
    for attempt in range(1, ATTEMPTS + 1):
        found = [free_port() for _ in range(ports)]
        command = Command(name, argv(found), env={**_OWN, **(env or {})}, guard=True)
        process = start(command)
        try:
            if _became_ready(process, partial(ready, found), last=attempt == ATTEMPTS):
                yield process, found
                return
        finally:
            with _without_segments(process.pid):
                process.stop()


def kill(process: Process) -> None:
    with _without_segments(process.pid):
        process.kill()
        process.wait()


def listens(address: str) -> bool:
    """Whether somebody takes connections at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), ASK_S).close()
    except OSError:
        return False
    return True


def status(address: str, path: str) -> int:
    """The status of a GET; 0 where nobody answers."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=ASK_S)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0


def _became_ready(process: Process, ready: Callable[[], bool], *, last: bool) -> bool:
    """Wait for it; False when it ended instead and may be tried again."""
    deadline = time.monotonic() + START_S
    while not ready():
        if process.alive and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        elif not process.alive and not last:
            return False
        else:
            what = f"was not ready after {START_S:g} s" if process.alive else "did not start"
            error = ProcessFailed(f"{process.name} {what}")
            error.add_note("\n".join(process.tail(40)))
            raise error
    return True


@contextmanager
def _without_segments(pid: int) -> Iterator[None]:
    """Whatever `pid` and those below it have in shared memory now is gone at the end.

    A killed program cannot take it away, and pytriton does not when it is told to end either.
    """
    used: set[Path] = set()
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                used |= {Path(region.path) for region in process.memory_maps()}
    yield
    for segment in used:
        if segment.parent == _SHARED_MEMORY:
            segment.unlink(missing_ok=True)
