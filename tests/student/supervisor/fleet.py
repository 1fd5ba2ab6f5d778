"""Supervisors in threads of a test, with stand-in ranks, around one board."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.lifecycle import Stop
from edl.student.settings import TrainSettings
from edl.student.show.plain import Plain
from edl.student.supervisor.means import Means, Outcome
from edl.student.supervisor.node import Supervisor
from edl.student.supervisor.telling import Teller
from edl.tests.student.id_log import check_each_once, restored_steps
from edl.tests.student.supervisor.stand_in import pid_file
from edl.tests.waiting import wait_until

STAND_IN = "edl.tests.student.supervisor.stand_in"
#: Nodes are lost, and ranks count as hung, only after longer than a busy machine stalls any.
MEANS = Means(module=STAND_IN, ttl_s=10.0, gather_s=0.3, room_s=2.0)
HANG_S = 30.0
JOB = "job"


@dataclass
class Node:
    """One supervisor that runs in a thread."""

    name: str
    spec: Path
    supervisor: Supervisor
    stop: Stop
    lines: list[str]
    thread: threading.Thread | None = None
    outcome: Outcome | None = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.outcome = self.supervisor.run(self.stop)
        except BaseException as error:
            self.error = error

    def signal(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(int(pid_file(self.spec, self.name, rank).read_text()), number)


@dataclass
class Fleet:
    folder: Path
    rows: int = 240
    epochs: int = 2
    batch: int = 4
    job: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    board: JobBoard = field(default_factory=MemoryBoard)
    means: Means = MEANS
    nodes: list[Node] = field(default_factory=list)

    def start(self, name: str) -> Node:
        spec = self.folder / "job.json"
        spec.write_text(json.dumps({"rows": self.rows, "step_s": 0.003, **self.job}))
        (self.folder / "ids").mkdir(exist_ok=True)
        lines: list[str] = []
        told = {
            "nodes": (1, 1),
            "epochs": self.epochs,
            "total_batch": self.batch,
            "checkpoint": str(self.folder / "checkpoints"),
            "save_every_steps": 10,
            "hang_s": HANG_S,
            "id_log": str(self.folder / "ids"),
            "coordinator": "redis://127.0.0.1:1",  # not dialled: the test gives the board
        }
        settings = TrainSettings(str(spec), JOB, **{**told, **self.settings})
        supervisor = Supervisor(
            settings, self.board, name, "127.0.0.1", Teller(Plain(lines.append)), self.means
        )
        node = Node(name, spec, supervisor, Stop(), lines)
        node.thread = threading.Thread(target=node.run, name=name)
        node.thread.start()
        self.nodes.append(node)
        return node

    def step(self) -> int:
        """The furthest step that a rank has told of."""
        return max((int(one.facts["step"]) for one in self.board.reports(JOB)), default=0)

    def generation(self) -> int:
        record = self.board.generation(JOB)
        return 0 if record is None else record.number

    def reach(self, step: int, generation: int = 0) -> None:
        """Wait until `step` is told of, in this generation or a later one."""
        wait_until(lambda: self.generation() >= generation and self.step() >= step)

    def open_gate(self) -> None:
        """Let ranks go beyond the step that the job file names as `gate`."""
        (self.folder / "job.gate").touch()

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = self.board.events(JOB, count=1000)
        return [dict(one.body) for one in found if one.body["kind"] == kind]

    def end(self, timeout_s: float = 60.0) -> None:
        """Wait until all nodes have ended."""
        for node in self.nodes:
            assert node.thread is not None
            node.thread.join(timeout_s)
            assert not node.thread.is_alive(), f"{node.name} runs: {node.lines}"

    def finished(self) -> None:
        """All nodes ended, the job finished, every sample of every epoch was trained once."""
        self.end()
        for node in self.nodes:
            if node.error is not None:
                raise node.error
        restored = restored_steps(self.board.events(JOB, count=1000))
        check_each_once(self.folder / "ids", restored, self.rows, self.epochs)

    def close(self) -> None:
        self.open_gate()
        for node in self.nodes:
            node.stop.request()
        self.end()
