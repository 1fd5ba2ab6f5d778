"""A world of real ranks under a supervisor that does what a test says, and nothing by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.student.checkpoint import Checkpoint, Repository, SnapshotOwner
from edl.student.launch import LOOPBACK, free_endpoints
from edl.student.link import ShardServer
from edl.student.messages import FromRank, Order
from edl.student.settings import TrainSettings
from edl.student.supervisor.workers import WorkerGroup
from edl.tests.waiting import DEADLINE_S

JOB = Path(__file__).with_name("small_job.py")


def settings(**given: Any) -> TrainSettings:
    base: dict[str, Any] = {"job_file": str(JOB), "job": "small", "save_overhead": 0.0}
    return TrainSettings(**{**base, **given})


def on_disk(owner: SnapshotOwner, folder: Path) -> Checkpoint:
    """Save the newest snapshot, as a supervisor does."""
    with owner.newest() as found:
        assert found is not None
        return Repository(str(folder)).save(found[1])


class World(ExitStack):
    """Ranks of one node in one generation; in a `with`, at whose end none is left.

    Attributes:
        words: all that ranks said, in the order in which it came, with the rank's number.
        lines: what they printed.
        codes: exit codes of those that ended.
    """

    def __init__(
        self,
        job: TrainSettings,
        ranks: int,
        *,
        owner: SnapshotOwner | None = None,
        restore: str = "",
        changes: tuple[str, ...] = (),
        generation: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.words: list[tuple[int, FromRank]] = []
        self.lines: list[str] = []
        self.codes: dict[int, int] = {}
        endpoints = tuple(free_endpoints(LOOPBACK, ranks))
        base = Order(job, generation, world=ranks, endpoints=endpoints, restore=restore)
        base = replace(base, optimizer_changes=changes)
        orders = [replace(base, rank=rank, local_rank=rank) for rank in range(ranks)]
        if owner is not None:
            orders[0] = replace(orders[0], snapshot=tuple(owner.keys))
        desk = self.enter_context(
            closing(ShardServer(JobBoard(MemoryStore()), job.job, generation, True))
        )
        self.crew = WorkerGroup(
            orders,
            desk,
            lambda rank, line: self.lines.append(f"{rank}: {line}"),
            environment=dict(environment or {}),
        )
        self.callback(self.crew.close)

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Hear ranks until a condition holds; fails with what they said where it does not."""
        deadline = time.monotonic() + DEADLINE_S
        while not until():
            if time.monotonic() > deadline or (not self.crew.running and not self._hear(0.0)):
                raise AssertionError(
                    f"not seen: {what}\n{self.words[-20:]}\n" + "\n".join(self.lines)
                )
            self._hear(0.2)

    def ended(self) -> dict[int, int]:
        """Wait until all have ended; their exit codes."""
        count = len(self.crew.ranks)
        self.wait(lambda: len(self.codes) == count, f"{count} exit codes")
        return self.codes

    def said(self, kind: type[Any]) -> list[Any]:
        return [word for _, word in self.words if isinstance(word, kind)]

    def _hear(self, wait_s: float) -> bool:
        news = self.crew.receive(wait_s)
        for rank, word in news:
            if isinstance(word, int):
                self.codes[rank.number] = word
            else:
                self.words.append((rank.number, word))
        return bool(news)
