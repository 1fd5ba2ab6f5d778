"""A rank without Paddle: takes orders, leases shards, steps with its peers, saves and leaves.

`python -m edl.tests.student.supervisor.stand_in LINK_FD`. The "job file" is JSON: `rows` of an
epoch, `step_s`, `batch` if the settings have none, and faults: `crash`: {"step", "rank", "times"}
(counted in a file beside it), `usage`: a message. Before step `gate` all ranks wait for a file of
that name, or until they are to leave. Each writes its pid beside the job file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from edl.errors import EdlError
from edl.scheduler.students.ranges import Ranges
from edl.scheduler.students.saving import Rhythm
from edl.scheduler.students.shards import cut
from edl.student.checkpoint import Contents, SnapshotWriter, open_checkpoint
from edl.student.link import RankLink
from edl.student.words import (
    EXIT_AGAIN,
    Failed,
    Finished,
    Left,
    Order,
    Progress,
    Ready,
    Saved,
    Scaled,
)
from edl.supervise import end_with_parent
from edl.tests.waiting import wait_until


class PeerGone(Exception):
    """Another rank has died."""


class Group:
    """Gathers a few numbers from all ranks; rank 0 collects them and sends them out."""

    def __init__(self, order: Order) -> None:
        host, _, port = order.endpoints[0].rpartition(":")
        address = (host, int(port))
        self._rank, self._world = order.rank, order.world
        self._peers: list[Connection] = []
        if self._rank == 0 and self._world > 1:
            with Listener(address, backlog=self._world) as listener:
                self._peers = [listener.accept() for _ in range(self._world - 1)]
        elif self._rank:
            wait_until(lambda: self._connect(address))

    def _connect(self, address: tuple[str, int]) -> bool:
        with suppress(OSError):
            self._peers.append(Client(address))
        return bool(self._peers)

    def gather(self, vote: dict[str, Any]) -> list[dict[str, Any]]:
        vote = {**vote, "rank": self._rank}
        try:
            if self._rank:
                self._peers[0].send(vote)
                votes: list[dict[str, Any]] = self._peers[0].recv()
                return votes
            votes = [vote, *(peer.recv() for peer in self._peers)]
            votes.sort(key=lambda one: int(one["rank"]))
            for peer in self._peers:
                peer.send(votes)
        except (OSError, EOFError) as error:
            raise PeerGone(f"a peer is gone: {error}") from error
        return votes


def pid_file(spec: Path, node: str, rank: int) -> Path:
    return spec.with_suffix(f".pid-{node}-{rank}")


class StandIn:
    def __init__(self, link: RankLink, order: Order) -> None:
        self.link, self.order, self.settings = link, order, order.settings
        spec = Path(order.settings.spec)
        self.job = json.loads(spec.read_text())
        pid_file(spec, order.node, order.rank).write_text(str(os.getpid()))
        if "usage" in self.job:
            raise EdlError(self.job["usage"])
        self.batch = self.settings.total_batch or self.job["batch"]
        self.step, self.epoch = 0, 0
        self.trained: dict[int, Ranges] = {}
        if order.restore:
            contents = open_checkpoint(order.restore)
            self.step, self.epoch = contents.step, contents.state["epoch"]
            self.trained = {
                int(key): Ranges.from_json(told) for key, told in contents.state["trained"].items()
            }
        self.writer = SnapshotWriter(order.snapshot) if order.local_rank == 0 else None
        self.rhythm = Rhythm(self.settings.save_every_steps, self.settings.save_every_s)
        self.saved_step, self.saved_s = self.step, time.monotonic()
        self.group = Group(order)
        self.waits = ""

    def steps(self) -> int:
        assert self.settings.epochs
        left = sum(
            self.job["rows"] - self.trained.get(epoch, Ranges()).count
            for epoch in range(self.epoch, self.settings.epochs)
        )
        return self.step + int(left) // self.batch

    def run(self) -> int:
        previous = self.order.previous_world
        if previous not in (0, self.order.world):
            self.link.tell(Scaled(previous, self.order.world))
        self.link.tell(Ready(self.step, self.epoch, self.steps(), self.batch))
        assert self.settings.epochs
        while self.epoch < self.settings.epochs:
            if not self.epoch_over():
                return EXIT_AGAIN
            self.epoch += 1
        if self.saved_step < self.step:
            self.save()
        self.link.tell(Finished(self.step, {"accuracy": 0.5}))
        return 0

    def epoch_over(self) -> bool:
        done = self.trained.setdefault(self.epoch, Ranges())
        part = -(-self.batch // self.order.world)
        self.link.fill(self.epoch, cut(done.complement(self.job["rows"]), part))
        while True:
            self.waits = "a shard"
            shard = self.link.lease(self.epoch)
            self.waits = "other ranks"
            votes = self.group.gather(
                {"shard": shard, "leave": self.link.leaving, "save": self.due()}
            )
            self.waits = ""
            shards = [tuple(one["shard"]) for one in votes if one["shard"]]
            if shards:
                self.take(shard, shards)
                if shard:
                    self.link.done(self.epoch, *shard)
            leave = any(one["leave"] for one in votes)
            if leave or (shards and any(one["save"] for one in votes)):
                self.save()
            if leave:
                self.link.tell(Left(self.step))
                return False
            if not shards:
                return True

    def take(self, shard: tuple[int, int] | None, shards: list[tuple[int, ...]]) -> None:
        rows = shard[1] - shard[0] if shard else 0
        self.crash(self.step + 1, shard)
        if self.step + 1 == self.job.get("gate"):
            gate = Path(self.settings.spec).with_suffix(".gate")
            while not gate.exists() and not self.link.leaving:
                time.sleep(0.005)
        time.sleep(self.job.get("step_s", 0.0))
        self.step += 1
        trained = self.trained[self.epoch]
        assert not any(position in trained for one in shards for position in range(*one))
        self.trained[self.epoch] = trained.union(Ranges.of(shards))
        if self.settings.id_log and shard:
            log = Path(self.settings.id_log) / f"rank-{self.order.rank}.jsonl"
            told = {
                "generation": self.order.generation,
                "rank": self.order.rank,
                "step": self.step,
                "epoch": self.epoch,
                "total": sum(stop - start for start, stop in shards),
                "positions": list(range(*shard)),
            }
            with log.open("a") as file:
                file.write(json.dumps(told) + "\n")
        total = sum(stop - start for start, stop in shards)
        self.link.tell(Progress(self.step, self.epoch, rows, total, step_s=0.001 * rows))

    def crash(self, step: int, shard: tuple[int, int] | None) -> None:
        crash = self.job.get("crash")
        if not crash or (crash["step"], crash["rank"]) != (step, self.order.rank):
            return
        marks = Path(self.settings.spec).with_suffix(".crash")
        before = len(marks.read_text()) if marks.exists() else 0
        if before < crash["times"]:
            marks.write_text("x" * (before + 1))
            positions = list(range(*shard)) if shard else []
            self.link.tell(Failed(step, self.epoch, positions, "ValueError: as was asked"))
            sys.exit(1)

    def due(self) -> bool:
        return self.rhythm.due(self.step + 1, time.monotonic(), self.saved_step, self.saved_s)

    def save(self) -> None:
        self.group.gather({})  # all have taken this step, and said so in their id logs
        self.saved_step, self.saved_s = self.step, time.monotonic()
        if self.writer is None:
            return
        state = {
            "epoch": self.epoch,
            "trained": {str(epoch): told.to_json() for epoch, told in self.trained.items()},
        }
        weights = np.full(64, self.step, np.float32)
        slot = self.writer.write(Contents(self.step, self.order.world, {"model/w": weights}, state))
        self.link.tell(Saved(self.step, slot))


def main(fd: int) -> int:
    end_with_parent(1.0)
    link = RankLink.attach(fd, lambda: os._exit(EXIT_AGAIN))
    order = link.order()
    try:
        rank = StandIn(link, order)
    except PeerGone as error:
        link.tell(Left(0, False, str(error)))
        return EXIT_AGAIN
    except EdlError as error:
        link.tell(Failed(0, error=str(error), usage=True))
        return 2
    threading.Thread(target=pulse, args=(rank,), daemon=True).start()
    try:
        return rank.run()
    except (PeerGone, EdlError) as error:
        link.tell(Left(rank.step, False, str(error)))
        return EXIT_AGAIN


def pulse(rank: StandIn) -> None:
    while True:
        time.sleep(0.5)
        if waits := rank.waits:
            rank.link.tell(Progress(rank.step, rank.epoch, waiting_for=waits))


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        code = main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)
