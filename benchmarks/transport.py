"""Time of a batch to a teacher and back, for each transport, compared with a plain socket.

The transports are interleaved. Each has a client and a server process, pinned to a core each, and
two requests in flight; the server reads each page of a batch and immediately answers with 128 KB.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from .report import BenchmarkReport, Estimate, Goal, Row, interleaved
from .transports import SHAPE, processes
from .transports.processes import RequestTimes, RunningTransport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransportRow:
    """A transport in the table.

    Attributes:
        transport: name of the transport in `transports.processes`.
        title: title in the table.
        tls: whether the transport uses TLS.
    """

    transport: str
    title: str
    tls: bool = False


BASELINE: Final = "tcp"
TRANSPORTS: Final = {
    BASELINE: TransportRow("tcp", "raw TCP"),
    "protobuf": TransportRow("protobuf", "OIP, generated code"),
    "codec": TransportRow("codec", "OIP over gRPC, our codec"),
    "own": TransportRow("own", "our transport"),
    "shared": TransportRow("shared", "our transport, shared memory"),
    "ssl": TransportRow("tcp", "a socket of ssl", tls=True),
    "own_tls": TransportRow("own", "our transport, TLS", tls=True),
}
#: Dtypes of a request.
DTYPES: Final = ("uint8", "float32")
#: Greatest wall time and CPU time (of both sides) of our transport, relative to raw TCP.
OWN: Final = 1.15
#: Greatest wall time of our transport with shared memory, relative to raw TCP.
SHARED: Final = 0.15
#: Greatest wall time by our transport with TLS, relative to a socket of `ssl`.
OWN_TLS: Final = 1.3
_BYTES_PER_TURN: Final = 300e6
_QUICK_BYTES_PER_TURN: Final = 60e6


def run(quick: bool) -> BenchmarkReport:
    """Measure requests of 32 images, in uint8 (4.8 MB) and in float32 (19.3 MB).

    Args:
        quick: fewer requests in each turn, and uint8 only.
    """
    rows: list[Row] = []
    goals: list[Goal] = []
    for dtype in DTYPES[: 1 if quick else None]:
        size = math.prod(SHAPE) * np.dtype(dtype).itemsize
        requests = max(int((_QUICK_BYTES_PER_TURN if quick else _BYTES_PER_TURN) / size), 4)
        by_transport = measure(SHAPE, dtype, requests)
        mb = f"{size / 1e6:.1f} MB"
        rows += _rows(mb, size, by_transport)
        own, raw, shared = (by_transport[name] for name in ("own", BASELINE, "shared"))
        goals += [
            Goal.judge(f"{mb}: ours, times raw TCP", _ratio(own.wall_s, raw.wall_s), "<=", OWN),
            Goal.judge(
                f"{mb}: ours, CPU time, times raw TCP", _ratio(_cpu_s(own), _cpu_s(raw)), "<=", OWN
            ),
            Goal.judge(
                f"{mb}: shared memory, times raw TCP",
                _ratio(shared.wall_s, raw.wall_s),
                "<=",
                SHARED,
            ),
        ]
        if "ssl" in by_transport:
            encrypted = _ratio(by_transport["own_tls"].wall_s, by_transport["ssl"].wall_s)
            goals.append(Goal.judge(f"{mb}: ours with TLS, times ssl", encrypted, "<=", OWN_TLS))
    return BenchmarkReport(rows, goals)


def measure(shape: tuple[int, ...], dtype: str, requests: int) -> dict[str, RequestTimes]:
    """Measure all transports, interleaved; without openssl, transports with TLS are left out.

    Args:
        shape: shape of a request.
        dtype: dtype of a request.
        requests: requests of each turn.

    Raises:
        ProcessFailed: a side did not start, or ended unexpectedly.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edl-bench-")))
        if has_tls := processes.has_openssl():
            processes.make_certificate(folder)
        else:
            log.info("without openssl, transports with TLS are left out")
        running = {
            name: RunningTransport(
                stack, row.transport, shape, dtype, tls=folder if row.tls else None
            )
            for name, row in TRANSPORTS.items()
            if has_tls or not row.tls
        }
        interleaved(*(partial(transport.turn, requests) for transport in running.values()))
        return {name: transport.times for name, transport in running.items()}


def _rows(mb: str, size: int, by_transport: dict[str, RequestTimes]) -> Iterator[Row]:
    raw = by_transport[BASELINE].wall_s
    for name, times in by_transport.items():
        yield {
            "request": mb,
            "transport": TRANSPORTS[name].title,
            "ms": 1e3 * statistics.median(times.wall_s[1:]),
            "times_raw_tcp": _ratio(times.wall_s, raw).value,
            "client_cpu_s_per_gb": statistics.median(times.client_cpu_s[1:]) / size * 1e9,
            "server_cpu_s_per_gb": statistics.median(times.server_cpu_s[1:]) / size * 1e9,
        }


def _cpu_s(times: RequestTimes) -> list[float]:
    """Return the CPU seconds per request of both sides together, for each turn."""
    return [sum(both) for both in zip(times.client_cpu_s, times.server_cpu_s, strict=True)]


def _ratio(these: list[float], those: list[float]) -> Estimate:
    """Estimate the ratio of `these` to `those` from paired turns, without the warm-up turns."""
    return Estimate.of_ratio(these[1:], those[1:])
