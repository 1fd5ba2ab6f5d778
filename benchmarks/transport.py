"""How long a batch takes to a teacher and back, by each lane, beside bytes over a plain socket.

The lanes run by turns in one run, each with a client and a server process on cores of their own and
two requests on their way; the server looks at each page of a batch and answers 128 KB at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from .lanes.turns import RunningLane, Turns
from .report import Estimate, Goal, Report, Row, interleaved

BASELINE: Final = "tcp"
#: The lanes by their modules, and what they are called.
LANES: Final = {
    BASELINE: "raw TCP",
    "protobuf": "OIP, generated code",
    "codec": "OIP, our codec",
    "shared": "OIP, shared memory",
}
#: Bytes of a request -> the most that the codec may take, in times of raw TCP.
SIZES: Final = {32 * 224 * 224 * 3: 1.9, 32 * 224 * 224 * 3 * 4: 2.2}
#: The least that it gains on generated code.
GAIN: Final = 2.5
#: The most that a batch may take that stays where it is, in times of raw TCP.
SHARED: Final = 0.3
_BYTES_PER_TURN: Final = 300e6
_QUICK_BYTES_PER_TURN: Final = 60e6


def run(quick: bool) -> Report:
    """Requests of 32 images, in uint8 (4.8 MB) and in float32 (19.3 MB).

    Args:
        quick: fewer requests in each turn, and the small size only.
    """
    rows: list[Row] = []
    goals: list[Goal] = []
    for size, most in list(SIZES.items())[: 1 if quick else None]:
        requests = max(int((_QUICK_BYTES_PER_TURN if quick else _BYTES_PER_TURN) / size), 4)
        turns = measure(size, requests)
        mb = f"{size / 1e6:.1f} MB"
        rows += _rows(mb, size, turns)
        own, raw, plain, shared = (
            turns[name].wall_s for name in ("codec", BASELINE, "protobuf", "shared")
        )
        goals += [
            Goal.judge(f"{mb}: codec, times raw TCP", _ratio(own, raw), "<=", most),
            Goal.judge(f"{mb}: gain on generated code", _ratio(plain, own), ">=", GAIN),
            Goal.judge(f"{mb}: shared memory, times raw TCP", _ratio(shared, raw), "<=", SHARED),
        ]
    return Report(rows, goals)


def measure(size: int, requests: int) -> dict[str, Turns]:
    """Let every lane carry `requests` of `size` bytes in each of several rounds.

    Raises:
        ProcessFailed: a side did not start, or ended by itself.
    """
    with ExitStack() as ending:
        lanes = {name: RunningLane(ending, name, size) for name in LANES}
        interleaved(*(partial(one.turn, requests) for one in lanes.values()))
        return {name: one.turns for name, one in lanes.items()}


def _rows(mb: str, size: int, turns: dict[str, Turns]) -> Iterator[Row]:
    raw = turns[BASELINE].wall_s
    for name, lane in LANES.items():
        taken = turns[name]
        yield {
            "request": mb,
            "lane": lane,
            "ms": 1e3 * statistics.median(taken.wall_s[1:]),
            "times_raw_tcp": _ratio(taken.wall_s, raw).value,
            "client_cpu_s_per_gb": statistics.median(taken.client_cpu_s[1:]) / size * 1e9,
            "server_cpu_s_per_gb": statistics.median(taken.server_cpu_s[1:]) / size * 1e9,
        }


def _ratio(these: list[float], those: list[float]) -> Estimate:
    """Of the turns of one round each."""
    return Estimate.of([one / other for one, other in zip(these[1:], those[1:], strict=True)])
