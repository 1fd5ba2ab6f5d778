"""A rank without Paddle: takes orders, leases shards, steps with its peers, saves and leaves.

`python -m edl.tests.student.supervisor.stand_in LINK_FD`. The "job file" is JSON: `rows` of an
epoch, `step_s`, `batch` where the settings name none, and what is to go wrong: `crash`: {"step",
"rank"}, `hang`: {"step", "rank"}, `usage`: a message, each as often as `times` says (marks are kept
beside the job file). Before step `gate` all ranks wait for a file of that name
there, or until they are to leave.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
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

CONNECT_S = 20.0


class PeerGone(Exception):
    """Another rank has died."""


class Group:
    """All ranks tell each other a few numbers; rank 0 collects and hands out."""

    def __init__(self, order: Order) -> None:
        host, _, port = order.endpoints[0].rpartition(":")
        self._rank, self._world = order.rank, order.world
        self._files: list[Any] = []
        if self._world == 1:
            return
        if self._rank == 0:
            with socket.create_server((host, int(port))) as server:
                server.settimeout(CONNECT_S)
                for _ in range(self._world - 1):
                    self._files.append(server.accept()[0].makefile("rw"))
        else:
            deadline = time.monotonic() + CONNECT_S
            while not self._files:
                try:
                    connection = socket.create_connection((host, int(port)), timeout=CONNECT_S)
                    connection.settimeout(None)
                    self._files.append(connection.makefile("rw"))
                except OSError:
                    if time.monotonic() > deadline:
                        raise PeerGone("rank 0 did not come") from None
                    time.sleep(0.01)

    def gather(self, vote: dict[str, Any]) -> list[dict[str, Any]]:
        vote = {**vote, "rank": self._rank}
        if self._world == 1:
            return [vote]
        try:
            if self._rank:
                self._say(self._files[0], vote)
                return list(self._hear(self._files[0]))
            votes = sorted(
                [vote, *(self._hear(file) for file in self._files)], key=lambda one: one["rank"]
            )
            for file in self._files:
                self._say(file, votes)
        except OSError as error:
            raise PeerGone(str(error)) from error
        return votes

    def _say(self, file: Any, value: Any) -> None:
        file.write(json.dumps(value) + "\n")
        file.flush()

    def _hear(self, file: Any) -> Any:
        line = file.readline()
        if not line:
            raise PeerGone("a peer is gone")
        return json.loads(line)


class StandIn:
    def __init__(self, link: RankLink, order: Order) -> None:
        self.link, self.order, self.settings = link, order, order.settings
        self.job = json.loads(Path(order.settings.spec).read_text())
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
        self.wrong(self.step + 1, shard)
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
        slow = self.job.get("slow", {}).get(str(self.order.rank), 1.0)
        progress = Progress(self.step, self.epoch, rows, total, step_s=slow * 0.001 * rows)
        self.link.tell(progress)

    def wrong(self, step: int, shard: tuple[int, int] | None) -> None:
        for what in ("crash", "hang"):
            told = self.job.get(what)
            if not told or told["step"] != step or told.get("rank", 0) != self.order.rank:
                continue
            marks = Path(self.settings.spec).with_suffix(f".{what}")
            before = len(marks.read_text()) if marks.exists() else 0
            if before >= told.get("times", 1):
                continue
            marks.write_text("x" * (before + 1))
            if what == "hang":
                os.kill(os.getpid(), signal.SIGSTOP)
                continue
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
