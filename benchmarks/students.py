"""Three student ranks, one of them three times slower: rows by speed compared with equal rows.

Two worlds of three ranks train the same job at the same time: one with shards and rows in
proportion to the speed of each rank, one with equal rows. A rank sleeps 2 ms for each row, the slow
rank 6 ms, so six ranks do not compete for cores. Rates are measured over windows of steps after the
shares have settled; the n-th window of one world is paired with the n-th window of the other.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Final

from ..coordinator.embedded import free_port
from ..coordinator.jobs import JobBoard
from ..coordinator.store.memory_store import MemoryStore
from ..runtime.errors import ProcessFailed
from ..student.link import ShardServer
from ..student.messages import Order
from ..student.settings import Deal, TrainSettings
from ..student.supervisor.workers import WorkerGroup
from .report import MIN_ROUNDS, BenchmarkReport, Estimate, Goal, Row

log = logging.getLogger(__name__)

RANKS: Final = 3
LIMIT: Final = 1.5
#: Steps until the shares have settled.
FIRST_STEPS: Final = 24
_DEADLINE_S: Final = 180.0
_DEALS: Final[tuple[Deal, Deal]] = ("dynamic", "static")


def run(quick: bool) -> BenchmarkReport:
    """Return a row for each way of sharing; the gain is the median over paired windows."""
    window = 2 if quick else 10
    steps = FIRST_STEPS + MIN_ROUNDS * window
    with tempfile.TemporaryDirectory(prefix="edl-bench-") as folder:
        _train(Path(folder), steps)
        rates = {deal: _rates(Path(folder) / deal, window) for deal in _DEALS}
        shares = {deal: _last_shares(Path(folder) / deal, steps) for deal in _DEALS}
    titles = {"dynamic": "rows by speed", "static": "equal rows"}
    rows: list[Row] = [
        {
            "shares": titles[deal],
            **Estimate.of(rates[deal]).columns("samples_per_s"),
            "rows_of_ranks": " ".join(map(str, shares[deal])),
        }
        for deal in _DEALS
    ]
    gain = Estimate.of_ratio(rates["dynamic"], rates["static"])
    return BenchmarkReport(rows, [Goal.judge("rows by speed / equal rows", gain, ">=", LIMIT)])


def _train(folder: Path, steps: int) -> None:
    """Train both worlds until all ranks end; raise ProcessFailed if a rank fails or is late."""
    with ExitStack() as stack:
        groups = [_world(stack, folder, deal, steps) for deal in _DEALS]
        deadline = time.monotonic() + _DEADLINE_S
        for group in groups:
            while group.running and time.monotonic() < deadline:
                group.receive(0.2)
            codes = [rank.code for rank in group.ranks]
            if any(codes):
                raise ProcessFailed(f"the ranks of the benchmark ended with {codes}, not with 0")
            if late := codes.count(None):
                raise ProcessFailed(
                    f"{late} ranks of the benchmark did not end within {_DEADLINE_S:g} s"
                )


def _world(stack: ExitStack, folder: Path, deal: Deal, steps: int) -> WorkerGroup:
    settings = TrainSettings(
        job_file=str(Path(__file__).with_name("jobs") / "unequal_ranks.py"),
        job=f"bench-{deal}",
        ranks_per_node=RANKS,
        steps=steps,
        deal=deal,
        save_overhead=0.0,
        id_log=str(folder / deal),
    )
    shard_server = stack.enter_context(
        closing(ShardServer(JobBoard(MemoryStore()), settings.job, 1, local=True))
    )
    endpoints = tuple(f"127.0.0.1:{free_port()}" for _ in range(RANKS))
    orders = [
        Order(settings, 1, rank, RANKS, local_rank=rank, endpoints=endpoints)
        for rank in range(RANKS)
    ]
    group = WorkerGroup(
        orders, shard_server, lambda rank, line: log.debug("rank %d: %s", rank, line)
    )
    stack.callback(group.close)
    return group


def _rates(folder: Path, window: int) -> list[float]:
    """Return the rows per second of all ranks in each window."""
    steps = [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]
    ends = steps[FIRST_STEPS - 1 :: window]
    return [
        sum(step["total"] for step in steps[first["step"] : last["step"]])
        / (last["at_s"] - first["at_s"])
        for first, last in pairwise(ends)
    ][:MIN_ROUNDS]


def _last_shares(folder: Path, step: int) -> list[int]:
    """Return the rows of each rank in a step."""
    return [
        next(
            record["rows"]
            for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()
            if (record := json.loads(line))["step"] == step
        )
        for rank in range(RANKS)
    ]
