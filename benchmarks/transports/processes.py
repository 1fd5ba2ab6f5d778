"""Transports by name; their servers and clients as processes on two cores, with times per turn."""

from __future__ import annotations

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from ...mesh.cores import on_cores
from ...proto.channel import Channel
from ...proto.security.credentials import TlsFiles
from ..children import Child, two_cores
from . import HOST, IN_FLIGHT, SendRequest, codec, protobuf, tcp

TRANSPORTS: Final = {
    "tcp": tcp.TCP,
    "copied": tcp.COPIED,
    "copied_local": tcp.COPIED_LOCAL,
    "protobuf": protobuf.GENERATED,
    "codec": codec.GRPC,
    "own": codec.OWN,
    "shared": codec.SHARED,
}


@dataclass
class RequestTimes:
    """Seconds per request of one transport, for each turn. The first turn is the warm-up."""

    wall_s: list[float] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)


class RunningTransport:
    """A server and a client of one transport, on two cores.

    Args:
        stack: ends both processes when it is closed.
        name: a key of `TRANSPORTS`.
        shape: shape of a request.
        dtype: dtype of a request.
        share_cores: both may run on either core; False: each has its own core.
        tls: folder of the certificate; None: no TLS.

    Raises:
        ProcessFailed: a side did not start, or ended unexpectedly.

    Attributes:
        times: times of all turns so far.
    """

    def __init__(
        self,
        stack: ExitStack,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        share_cores: bool = False,
        tls: Path | None = None,
    ) -> None:
        cores = two_cores()
        server_cores, client_cores = (cores, cores) if share_cores else (cores[:1], cores[1:])
        folder = str(tls or "")
        with on_cores(server_cores):
            self._server = Child(
                stack, f"the server of transport {name}", serve, name, shape, dtype, folder
            )
        port = self._server.receive()["port"]
        with on_cores(client_cores):
            self._client = Child(
                stack, f"the client of transport {name}", send, name, shape, dtype, folder, port
            )
        self._client.receive()
        self.times = RequestTimes()

    def turn(self, requests: int) -> float:
        """Send `requests`, extend `times`, and return the wall seconds per request.

        The client rounds the number down to a multiple of `IN_FLIGHT`.
        """
        before_s = self._server.ask("use")["cpu_s"]
        ran = self._client.ask("run", requests=requests)
        used_s = self._server.ask("use")["cpu_s"] - before_s
        count = ran["requests"]
        self.times.wall_s.append(ran["wall_s"] / count)
        self.times.client_cpu_s.append(ran["cpu_s"] / count)
        self.times.server_cpu_s.append(used_s / count)
        return float(ran["wall_s"] / count)


def has_openssl() -> bool:
    """Whether openssl, which `make_certificate` needs, is installed."""
    return shutil.which("openssl") is not None


def make_certificate(folder: Path) -> None:
    """Make a self-signed certificate for loopback and its key in `folder`, valid for a day."""
    files = _tls_files(folder)
    command = ["openssl", "req", "-x509", "-days", "1", "-noenc", "-subj", f"/CN={HOST}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-addext", f"subjectAltName=IP:{HOST}"]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(command, check=True, capture_output=True)


def _tls_files(folder: Path) -> TlsFiles:
    return TlsFiles(certificate=folder / "certificate.pem", key=folder / "key.pem")


# --- the processes of both sides


def serve(channel: Channel, name: str, shape: tuple[int, ...], dtype: str, folder: str) -> None:
    """Serve a transport until the channel ends; answer each message with the CPU time used so far.

    Args:
        channel: its first message to the benchmark has the port.
        name: a key of `TRANSPORTS`.
        shape: shape of the requests.
        dtype: dtype of the requests.
        folder: folder of the certificate; empty: no TLS.
    """
    tls = _tls_files(Path(folder)) if folder else None
    channel.send("ready", port=TRANSPORTS[name].serve(np.ones(shape, dtype), tls))
    for _ in channel:
        channel.send("used", cpu_s=time.process_time())


def send(
    channel: Channel, name: str, shape: tuple[int, ...], dtype: str, folder: str, port: int
) -> None:
    """Send the number of requests that each message asks for, until the channel ends.

    The answer has the number of sent requests, their wall time, and the CPU time of this process.
    """
    tls = _tls_files(Path(folder)) if folder else None
    send_request = TRANSPORTS[name].connect(port, np.ones(shape, dtype), tls)
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        channel.send("ready")
        for message in channel:
            per_thread = message["requests"] // IN_FLIGHT
            began_s, used_s = time.perf_counter(), time.process_time()
            list(threads.map(partial(_repeat, send_request, per_thread), range(IN_FLIGHT)))
            channel.send(
                "ran",
                wall_s=time.perf_counter() - began_s,
                cpu_s=time.process_time() - used_s,
                requests=per_thread * IN_FLIGHT,
            )


def _repeat(send_request: SendRequest, times: int, number: int) -> None:
    for _ in range(times):
        send_request(number)
