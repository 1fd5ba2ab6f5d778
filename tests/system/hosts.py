"""Hosts as network namespaces, and a switch between them that can cut any two apart.

For programs that run in a user and a network namespace of their own (`unshare -Urn`). The switch is
a thread that hands Ethernet frames from one host's interface to the others': so partitions need
neither netem nor iptables, and both sides see nothing but silence.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Final, Self

from edl.supervise import Command, Process, start

_TUNSETIFF: Final = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET: Final = 0x40000000
_FRAME_BYTES: Final = 1 << 16


class Host:
    """One host; it lives as long as a process that sleeps in its namespace."""

    def __init__(self, number: int) -> None:
        self.address = f"10.77.0.{number}"
        self._sleeper = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        self.port = self._plugged_in()
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            self.run("ip", "link", "set", interface, "up")

    def command(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> Command:
        """What runs a program there."""
        inside = ("nsenter", "-t", str(self._sleeper.pid), "-n", "--", *words)
        return Command(name, inside, env=env or {}, guard=True)

    def python(self, name: str, module: str, *words: object) -> Process:
        """Start a module there."""
        arguments = ("-P", "-u", "-m", module, *map(str, words))
        return start(self.command(name, sys.executable, *arguments))

    def run(self, *words: str) -> str:
        """Run a program there to its end; what it prints."""
        inside = ["nsenter", "-t", str(self._sleeper.pid), "-n", "--", *words]
        return subprocess.run(inside, check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        os.close(self.port)
        self._sleeper.kill()
        self._sleeper.wait()

    def _plugged_in(self) -> int:
        """The other end of a new interface `eth0` in the host's namespace."""
        made: list[int] = []

        def plug() -> None:  # in a thread, whose namespace nobody else has
            namespace = f"/proc/{self._sleeper.pid}/ns/net"
            while os.readlink(namespace) == os.readlink("/proc/self/ns/net"):
                pass  # `unshare` has not done it yet
            with open(namespace) as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TAP | _IFF_NO_PI))
            made.append(fd)

        thread = threading.Thread(target=plug)
        thread.start()
        thread.join()
        return made[0]


class Network:
    """Hosts at one switch."""

    def __init__(self, count: int) -> None:
        self._apart: set[frozenset[int]] = set()
        self._stopping = threading.Event()
        with ExitStack() as undo:
            self.hosts = []
            for number in range(1, count + 1):
                self.hosts.append(Host(number))
                undo.callback(self.hosts[-1].close)
            self._undo = undo.pop_all()
        self._thread = threading.Thread(target=self._switch, name="switch")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._undo.close()

    def part(self, one: int, other: int) -> None:
        """From now on nothing passes between two hosts, which are counted from 0."""
        self._apart.add(frozenset((one, other)))

    def heal(self) -> None:
        """Everything passes."""
        self._apart.clear()

    def _switch(self) -> None:
        ports = [host.port for host in self.hosts]
        while not self._stopping.is_set():
            for source in select.select(ports, [], [], 0.1)[0]:
                frame = os.read(source, _FRAME_BYTES)
                for to, port in enumerate(ports):
                    ends = frozenset((ports.index(source), to))
                    if len(ends) == 2 and ends not in self._apart:
                        with suppress(OSError):  # that interface is not up yet
                            os.write(port, frame)
