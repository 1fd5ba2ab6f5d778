"""Latency of a teacher for a good client, alone and while others attack every port of a mesh.

The mesh has a manager with its page, and a teacher with TLS, tokens, HTTP and metrics. One client
has batches labelled all the time. Then, for the same time, attackers hold thousands of connections
and handshakes, send incomplete requests, impossible lengths, random bytes and frames, guess tokens,
and register shared memory of others. They run at the lowest priority, as if on other machines.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import psutil

from ..mesh.local import TEACHER_READY
from ..proto.clients import LabelRequest
from ..proto.clients.oip_grpc import OipGrpcClient
from ..proto.security import ClientSecurity, TlsFiles
from ..runtime.errors import EdlError, UsageError
from ..runtime.supervise import python_command, start
from .attackers import attacks
from .children import Child
from .report import BenchmarkReport, Goal, Row, quantile
from .teachers.models import FEATURES

log = logging.getLogger(__name__)

SERVICE: Final = "bench"
MODEL: Final = "edl.benchmarks.teachers.models:cheap"
ROWS: Final = 32
#: Greatest p99 under attack, relative to p99 without.
LATER: Final = 3.0
#: Greatest growth of the memory of teacher and manager from the first third of the attack to the
#: last.
GROWTH_BYTES: Final = 64 << 20
_READY_S: Final = 60.0
_ANSWER_S: Final = 10.0
_PAUSE_S: Final = 0.02
#: Memory readings in a phase.
_LOOKS: Final = 60


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
        child = Child(stack, "attackers", attacks.__name__)
        child.ask("attack", ports=mesh.ports, token=mesh.token, model=SERVICE, tls=True)
        log.info("while others attack, for %g s", phase_s)
        attacked = mesh.measure(phase_s)
        acts = child.ask("counts")["of"]
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
    later = attacked.p99_s / alone.p99_s
    goals = [
        Goal.judge("p99 under attack / p99 alone", later, "<=", LATER),
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
        for made in ("ca .", "manager . head 127.0.0.1 localhost"):
            command = ("sh", str(script), *made.split())
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        self.token = secrets.token_hex()
        tokens = folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"student:{SERVICE} {self.token}\nviewer:probe {secrets.token_hex()}\n")
        files = ("--tls", f"cert={folder / 'head.pem'},key={folder / 'head.key'}")
        access = (*files, "--tokens", str(tokens), "--metrics-listen", "0")
        serve = ("coordinator", "serve", "--redis-port", "0", "--http", "0")
        manager = start(python_command("manager", "edl", *serve, *access))
        stack.callback(manager.stop)
        page = manager.expect(r"page of the mesh is at https?://127.0.0.1:(\d+)/", _READY_S)
        manager_ready = manager.expect(r"coordinator ready: \S+ manager (\S+):(\d+)", _READY_S)
        teaching = ("serve", "--model", MODEL, "--service", SERVICE, "--http", "0")
        teacher = start(python_command("teacher", "edl.teacher", *teaching, *access))
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
        own = folder / "token"
        own.touch(0o600)
        own.write_text(self.token)
        security = ClientSecurity(TlsFiles(ca=folder / "ca.pem"), own)
        self._client = OipGrpcClient(f"localhost:{self.ports['grpc'][1]}", SERVICE, security)
        stack.callback(self._client.close)
        self._client.probe(_READY_S)
        self._watched = [psutil.Process(one.pid) for one in (manager, teacher)]

    def measure(self, seconds: float) -> Phase:
        """Have batches labelled for `seconds`, one request at a time."""
        latencies, failures, memory = list[float](), 0, list[int]()
        request = LabelRequest({"x": np.zeros((ROWS, FEATURES), np.float32)})
        until = look_at = time.monotonic()
        until += seconds
        while (began := time.monotonic()) < until:
            try:
                self._client.infer(request, _ANSWER_S)
                latencies.append(time.monotonic() - began)
            except EdlError as error:
                log.info("the good client was not answered: %s", error)
                failures += 1
            if began >= look_at:
                memory.append(sum(map(_bytes_of, self._watched)))
                look_at += seconds / _LOOKS
            time.sleep(_PAUSE_S)
        return Phase(latencies, failures, memory)


def _bytes_of(process: psutil.Process) -> int:
    """Return the memory that only the process and its descendants use (USS), in bytes."""
    nbytes = 0
    with contextlib.suppress(psutil.Error):  # a process has ended
        for one in (process, *process.children(recursive=True)):
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
