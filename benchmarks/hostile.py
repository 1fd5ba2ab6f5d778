"""Latency of a teacher for a good client, alone and while others attack every port of a mesh.

The mesh has a manager with its page, and a teacher with TLS, tokens, HTTP and metrics. One good
client has batches labelled all the time. In the second of two equally long phases, attackers hold
thousands of connections and handshakes, send incomplete requests, impossible lengths, random bytes
and frames, guess tokens, and register shared memory of others. They run at the lowest priority, as
if on other machines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import psutil

from ..mesh.local import TEACHER_READY
from ..proto.channel import Channel
from ..proto.clients import LabelRequest
from ..proto.clients.oip_grpc import OipGrpcClient
from ..proto.security.credentials import ClientSecurity, TlsFiles
from ..runtime.errors import EdlError, UsageError
from ..runtime.lifecycle import raise_descriptor_limit, wait_until
from ..runtime.supervise import python_command, start
from .children import Child
from .paced import SERVICE
from .paced.teachers import CHEAP
from .report import BenchmarkReport, Goal, Row, quantile
from .teachers.models import FEATURES

log = logging.getLogger(__name__)

ROWS: Final = 32
#: Greatest p99 latency under attack, relative to p99 without attack.
P99_RATIO: Final = 3.0
#: Greatest growth of the memory of teacher and manager from the first third of the attack to the
#: last third.
GROWTH_BYTES: Final = 64 << 20
_READY_S: Final = 60.0
_ANSWER_S: Final = 10.0
#: Seconds between two requests of the good client.
_PAUSE_S: Final = 0.02
#: Memory readings in a phase.
_MEMORY_READINGS: Final = 60
#: Lowest priority, so that the good client is slowed by the attack, not by the attacker's CPU use.
_NICE: Final = 19
#: Seconds between two acts of one kind.
_ACT_PAUSE_S: Final = 0.02
#: Number of connections that are held open at the HTTP port, and at the metrics port.
_IDLE, _IDLE_METRICS = 2000, 32
_HUGE: Final = 1 << 40
#: Preface of an HTTP/2 connection, which gRPC uses.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Phase:
    """Measurements of one phase.

    Attributes:
        latencies_s: seconds of each answer to the good client.
        failures: requests of the good client without an answer.
        memory: bytes of teacher and manager together, in the order of time.
    """

    latencies_s: Sequence[float]
    failures: int
    memory: Sequence[int]

    @property
    def p99_s(self) -> float:
        return quantile(self.latencies_s, 0.99)


def run(quick: bool, seconds: float | None = None) -> BenchmarkReport:
    """Measure both phases.

    Args:
        quick: phases of 30 s unless `seconds` is given.
        seconds: length of each phase; None: 10 minutes.

    Raises:
        UsageError: openssl, which makes the certificates, is not installed.
    """
    phase_s = seconds or (30.0 if quick else 600.0)
    if shutil.which("openssl") is None:
        raise UsageError("this benchmark makes certificates by openssl 3, which is not installed")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        mesh = AttackedMesh(stack, folder)
        log.info("the good client alone, for %g s", phase_s)
        alone = mesh.measure(phase_s)
        child = Child(stack, "attackers", attack, mesh.ports, mesh.token)
        child.receive()
        log.info("while others attack, for %g s", phase_s)
        attacked = mesh.measure(phase_s)
        acts = child.ask("counts")["counts"]
    return judge(alone, attacked, acts)


def judge(alone: Phase, attacked: Phase, acts: Mapping[str, int]) -> BenchmarkReport:
    """Make the report.

    Args:
        alone: the phase without attackers.
        attacked: the phase with them.
        acts: number of acts of each kind of attack.
    """
    rows: list[Row] = [_row("alone", alone), _row("attacked", attacked)]
    third = max(len(attacked.memory) // 3, 1)
    growth = max(attacked.memory[-third:]) - max(attacked.memory[:third])
    log.info("acts of attackers: %s", ", ".join(f"{n} x {name}" for name, n in acts.items()))
    ratio = attacked.p99_s / alone.p99_s
    goals = [
        Goal.judge("p99 under attack / p99 alone", ratio, "<=", P99_RATIO),
        Goal.judge("requests without an answer", alone.failures + attacked.failures, "==", 0),
        Goal.judge("growth of memory under attack, bytes", growth, "<=", GROWTH_BYTES),
        Goal.judge("kinds of attack without an act", [*acts.values()].count(0), "==", 0),
    ]
    return BenchmarkReport(rows, goals)


class AttackedMesh:
    """A manager, a teacher and the good client.

    Args:
        stack: stops all processes when it is closed.
        folder: empty folder for certificates and tokens.

    Attributes:
        ports: name of each listener -> (host, port).
        token: token of the good client; the attackers have it, too.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        script = Path(__file__).parents[1] / "deploy" / "tls" / "certificates.sh"
        for arguments in ("ca .", "manager . head 127.0.0.1 localhost"):
            command = ("sh", str(script), *arguments.split())
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        self.token = secrets.token_hex()
        tokens = folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"student:{SERVICE} {self.token}\nviewer:probe {secrets.token_hex()}\n")
        files = ("--tls", f"cert={folder / 'head.pem'},key={folder / 'head.key'}")
        access = (*files, "--tokens", str(tokens), "--metrics-listen", "0")
        serve = ("coordinator", "serve", "--redis-port", "0", "--http", "0")
        manager = start(python_command("manager", "edl", *serve, *access, isolated=True))
        stack.callback(manager.stop)
        page = manager.expect(r"page of the mesh is at https?://127.0.0.1:(\d+)/", _READY_S)
        manager_ready = manager.expect(r"coordinator ready: \S+ manager (\S+):(\d+)", _READY_S)
        teach = ("serve", "--model", CHEAP, "--service", SERVICE, "--http", "0")
        teacher = start(python_command("teacher", "edl.teacher", *teach, *access, isolated=True))
        stack.callback(teacher.stop)
        metrics = teacher.expect(r"metrics on http://127.0.0.1:(\d+)/", _READY_S)
        http = teacher.expect(r"HTTP on https://127.0.0.1:(\d+)/", _READY_S)
        ready = teacher.expect(TEACHER_READY, _READY_S)
        address = ready[3]
        self.ports = {
            "page": ("127.0.0.1", int(page[1])),
            "manager": (manager_ready[1], int(manager_ready[2])),
            "http": ("127.0.0.1", int(http[1])),
            "grpc": ("127.0.0.1", int(address.rpartition(":")[2])),
            "metrics": ("127.0.0.1", int(metrics[1])),
        }
        token_file = folder / "token"
        token_file.touch(0o600)
        token_file.write_text(self.token)
        security = ClientSecurity(TlsFiles(ca=folder / "ca.pem"), token_file)
        self._client = OipGrpcClient(f"localhost:{self.ports['grpc'][1]}", SERVICE, security)
        stack.callback(self._client.close)
        self._client.probe(_READY_S)
        self._watched = [psutil.Process(process.pid) for process in (manager, teacher)]

    def measure(self, seconds: float) -> Phase:
        """Have batches labelled for `seconds`, one request at a time."""
        latencies, failures, memory = list[float](), 0, list[int]()
        request = LabelRequest({"x": np.zeros((ROWS, FEATURES), np.float32)})
        next_reading = time.monotonic()
        until = next_reading + seconds
        while (began := time.monotonic()) < until:
            try:
                self._client.infer(request, _ANSWER_S)
                latencies.append(time.monotonic() - began)
            except EdlError as error:
                log.info("the good client was not answered: %s", error)
                failures += 1
            if began >= next_reading:
                memory.append(sum(map(_bytes_of, self._watched)))
                next_reading += seconds / _MEMORY_READINGS
            time.sleep(_PAUSE_S)
        return Phase(latencies, failures, memory)


def _bytes_of(process: psutil.Process) -> int:
    """Return the memory that only the process and its descendants use (USS), in bytes."""
    nbytes = 0
    with contextlib.suppress(psutil.Error):  # the process has ended
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # one of them has ended; the others count
                nbytes += one.memory_full_info().uss
    return nbytes


def _row(name: str, phase: Phase) -> Row:
    return {
        "phase": name,
        "answers": len(phase.latencies_s),
        "failures": phase.failures,
        "median_ms": 1000 * quantile(phase.latencies_s, 0.5),
        "p99_ms": 1000 * phase.p99_s,
        "memory_mib": max(phase.memory) / (1 << 20),
    }


# --- the process of the attackers


class Attacks:
    """Kinds of attack. A call of a kind's function is one act; each kind may have its own thread.

    Args:
        ports: "http", "grpc", "metrics", "page", "manager" -> (host, port).
        token: token of a student, as if its machine were compromised.
    """

    def __init__(self, ports: Mapping[str, Address], token: str) -> None:
        self._ports = dict(ports)
        self._token = token
        self._infer = f"/v2/models/{SERVICE}/infer"
        self._tls = ssl._create_unverified_context()
        self._tls_http_2 = ssl._create_unverified_context()
        self._tls_http_2.set_alpn_protocols(["h2"])
        self._open: dict[str, deque[socket.socket]] = {}
        self._rng = random.Random(1)

    def kinds(self) -> Mapping[str, Callable[[], None]]:
        """Return the function of each kind of attack, by name."""
        return {
            "handshakes that do not go on": self.begin_handshake,
            "idle connections": lambda: self._hold("http", _IDLE),
            "idle scrapes": lambda: self._hold("metrics", _IDLE_METRICS),
            "random bytes": self.send_noise,
            "half a request": lambda: self._post(self._token, 1 << 20, b"x" * 1000),
            "a length that cannot be": lambda: self._post(self._token, _HUGE, b""),
            "guessed tokens": lambda: self._post(f"{self._rng.random()}", 1000, b"x" * 1000),
            "frames of HTTP/2": self.send_frames,
            "memory of others": self.register_memory,
        }

    def begin_handshake(self) -> None:
        """Send only the first bytes of a TLS record, and keep the connection open."""
        connection = self._connect("http")
        connection.sendall(b"\x16\x03\x01\x02\x00")
        self._keep("handshakes", connection, 300)

    def send_noise(self) -> None:
        """Send random bytes to a random port."""
        with self._connect(self._rng.choice(list(self._ports))) as connection:
            connection.sendall(self._rng.randbytes(self._rng.randrange(1, 4096)))

    def send_frames(self) -> None:
        """Send HTTP/2 frames of random types, streams and lengths."""
        with self._tls_http_2.wrap_socket(self._connect("grpc")) as connection:
            connection.sendall(_PREFACE)
            for _ in range(20):
                kind, stream = self._rng.randrange(16), self._rng.randrange(1 << 16)
                body = self._rng.randbytes(self._rng.randrange(200))
                head = struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, 0, stream)
                connection.sendall(head + body)

    def register_memory(self) -> None:
        """Register a foreign object of `/dev/shm`, and a descriptor of process 1."""
        for key in ("/edl-of-somebody", "/edl-fd-1-3"):
            body = b'{"key": "%s", "offset": 0, "byte_size": 4096}' % key.encode()
            path = "/v2/systemsharedmemory/region/r/register"
            self._post(self._token, len(body), body, path)

    def _post(self, token: str, nbytes: int, body: bytes, path: str = "") -> None:
        lines = [
            f"POST {path or self._infer} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {token}",
            f"Content-Length: {nbytes}",
        ]
        connection = self._tls.wrap_socket(self._connect("http"))
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        self._keep("requests", connection, 200)

    def _connect(self, listener: str) -> socket.socket:
        return socket.create_connection(self._ports[listener], 5.0)

    def _hold(self, listener: str, count: int) -> None:
        self._keep(listener, self._connect(listener), count)

    def _keep(self, kind: str, connection: socket.socket, most: int) -> None:
        """Keep a connection open; close the oldest of its kind if there are more than `most`."""
        connections = self._open.setdefault(kind, deque())
        connections.append(connection)
        if len(connections) > most:
            connections.popleft().close()


def attack(channel: Channel, ports: Mapping[str, Address], token: str) -> None:
    """Attack until the channel ends; answer each message with the number of acts of each kind.

    Each kind of attack runs in its own thread, and continues when connections fail.

    Args:
        channel: its first message to the benchmark means that each kind has made an act, or that a
            minute has passed.
        ports: see `Attacks`.
        token: see `Attacks`.
    """
    os.nice(_NICE)
    raise_descriptor_limit()
    attacks = Attacks({name: (host, port) for name, (host, port) in ports.items()}, token)
    counts = dict.fromkeys(attacks.kinds(), 0)
    for name, act in attacks.kinds().items():
        threading.Thread(target=_attack, args=(act, counts, name), daemon=True).start()
    wait_until(lambda: all(counts.values()), _READY_S, _ACT_PAUSE_S)
    channel.send("started")
    for _ in channel:
        channel.send("counts", counts=counts)


def _attack(act: Callable[[], None], counts: dict[str, int], name: str) -> None:
    while True:
        with contextlib.suppress(OSError):  # the connection was closed or refused, or timed out
            act()
            counts[name] += 1
        time.sleep(_ACT_PAUSE_S)
