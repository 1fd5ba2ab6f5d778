"""A rank without Paddle: takes orders, steps with its peers, saves and leaves.

`python -m edl.tests.student.supervisor.stand_in LINK_FD`. The "job file" is JSON: `steps`,
`step_s`, `batch` if the settings have none, and faults: `crash`: {"step", "rank", "times"} (counted
in a file beside it), `stuck`: a step before which all ranks wait for each other, `absent`: {"step",
"rank", "for_s"}: that rank waits for labels there, `second_s`: of waiting for other ranks before a
step of these two, as told, `usage`: an error of the user, `asks`: a shard is asked for first,
`invalid`: it is sent first, as a saved step. Before step `gate` all ranks wait for a file of that
name, or until they are to leave. Each writes its pid to a file.
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

from edl.runtime.errors import EdlError, NoTeacherAvailable
from edl.runtime.supervise import end_with_parent
from edl.scheduler.students.saving import SaveSchedule
from edl.student import messages
from edl.student.checkpoint import Contents, SnapshotWriter, open_checkpoint
from edl.student.link import RankLink
from edl.tests.waiting import wait_until


class PeerGone(Exception):
    """Another rank has died."""


class Group:
    """Gathers a few numbers from all ranks; rank 0 collects them and sends them out."""

    def __init__(self, order: messages.Order) -> None:
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

    def gather(self, vote: dict[str, bool]) -> list[dict[str, bool]]:
        try:
            if self._rank:
                self._peers[0].send(vote)
                votes: list[dict[str, bool]] = self._peers[0].recv()
                return votes
            votes = [vote, *(peer.recv() for peer in self._peers)]
            for peer in self._peers:
                peer.send(votes)
        except (OSError, EOFError) as error:
            raise PeerGone(f"a peer is gone: {error}") from error
        return votes


def pid_file(spec: Path, node: str, rank: int) -> Path:
    return spec.with_suffix(f".pid-{node}-{rank}")


class StandIn:
    def __init__(self, link: RankLink, order: messages.Order) -> None:
        self.link, self.order, self.settings = link, order, order.settings
        self.spec = Path(order.settings.job_file)
        self.job: dict[str, Any] = json.loads(self.spec.read_text())
        pid_file(self.spec, order.node, order.rank).write_text(str(os.getpid()))
        if "usage" in self.job and not order.inspect:
            raise EdlError(self.job["usage"])
        if "no_teacher" in self.job and not order.inspect:
            raise NoTeacherAvailable(self.job["no_teacher"])
        self.waits, self.waits_since_s = "", 0.0
        if order.inspect:
            return
        self.batch = self.settings.total_batch or self.job["batch"]
        restored = open_checkpoint(order.restore) if order.restore else None
        self.step = restored.step if restored else 0
        self.previous_world = restored.world if restored else 0
        self.writer = SnapshotWriter(order.snapshot) if order.snapshot else None
        told = self.settings
        self.rhythm = SaveSchedule(told.save_every_steps, told.save_every_s, told.save_overhead)
        self.saved_step, self.saved_s = self.step, time.monotonic()
        self.group = Group(order)

    def run(self) -> int:
        if self.order.inspect:
            told = {"seed": self.settings.seed, "total_batch": self.settings.total_batch}
            self.link.send(messages.Inspected(told))
            return 0
        previous, world = self.previous_world, self.order.world
        if previous not in (0, world):
            self.link.send(messages.Scaled(previous, world))
        self.link.send(messages.Ready(self.step, 0, self.job["steps"], self.batch))
        if "invalid" in self.job:
            self.link.send(messages.Saved(self.job["invalid"]))
        if "asks" in self.job:
            self.waits = "a shard"
            self.link.lease(0)
        while self.step < self.job["steps"]:
            self.waits_since_s = time.monotonic()
            self.waits = "soft labels" if self.is_absent() else "other ranks"
            self.wait_at_gate()
            if self.step + 1 == self.job.get("stuck"):
                threading.Event().wait()
            if self.is_absent():
                time.sleep(self.job["absent"]["for_s"])
            votes = self.group.gather({"leave": self.link.leaving, "save": self.due()})
            self.waits = ""
            if any(one["leave"] for one in votes):
                self.save()
                self.link.send(messages.Left(self.step))
                return messages.EXIT_AGAIN
            self.crash()
            time.sleep(self.job["step_s"])
            self.step += 1
            rows = -(-self.batch // world)
            self.link.send(messages.Progress(self.step, 0, rows, self.batch, step_s=0.001 * rows))
            if any(one["save"] for one in votes):
                self.save()
        if self.saved_step < self.step:
            self.save()
        self.link.send(messages.Finished(self.step, {"accuracy": 0.5}))
        return 0

    def wait_at_gate(self) -> None:
        if self.step + 1 == self.job.get("gate"):
            while not self.spec.with_suffix(".gate").exists() and not self.link.leaving:
                time.sleep(0.005)

    def is_absent(self) -> bool:
        absent = self.job.get("absent", {"step": 0, "rank": 0})
        return (self.step + 1, self.order.rank) == (absent["step"], absent["rank"])

    def crash(self) -> None:
        crash, step = self.job.get("crash"), self.step + 1
        if not crash or (crash["step"], crash["rank"]) != (step, self.order.rank):
            return
        marks = self.spec.with_suffix(".crash")
        before = len(marks.read_text()) if marks.exists() else 0
        if before < crash["times"]:
            marks.write_text("x" * (before + 1))
            positions = list(range(self.step * self.batch, step * self.batch))
            self.link.send(messages.Failed(step, 0, positions, "ValueError: as was asked"))
            sys.exit(1)

    def due(self) -> bool:
        return self.rhythm.due(self.step + 1, time.monotonic(), self.saved_step, self.saved_s)

    def save(self) -> None:
        self.saved_step, self.saved_s = self.step, time.monotonic()
        if self.writer is not None:
            weights = {"model/w": np.full(64, self.step, np.float32)}
            self.writer.write(Contents(self.step, self.order.world, weights, {}))
            self.link.send(messages.Saved(self.step))


def main(fd: int) -> int:
    end_with_parent(1.0)
    link = RankLink(fd)
    order = link.order()
    try:
        rank = StandIn(link, order)
    except PeerGone as error:
        link.send(messages.Left(0, False, str(error)))
        return messages.EXIT_AGAIN
    except EdlError as error:
        gave_up = isinstance(error, NoTeacherAvailable)
        link.send(messages.Failed(0, error=str(error), usage=not gave_up, gave_up=gave_up))
        return 2
    threading.Thread(target=pulse, args=(rank,), daemon=True).start()
    try:
        return rank.run()
    except (PeerGone, EdlError) as error:
        link.send(messages.Left(rank.step, False, str(error)))
        return messages.EXIT_AGAIN


def pulse(rank: StandIn) -> None:
    while True:
        time.sleep(0.5)
        if waits := rank.waits:
            peers_s = 0.0
            if waits == "other ranks":
                peers_s = time.monotonic() - rank.waits_since_s
                if rank.step + 1 in (rank.job.get("stuck"), rank.job.get("absent", {}).get("step")):
                    peers_s *= rank.job.get("second_s", 1.0)
            rank.link.send(messages.Progress(rank.step, 0, waiting_for=waits, peers_s=peers_s))


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        code = main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)
