"""Supervisors in threads of a test, with stand-in ranks, around one board."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.lifecycle import Stop
from edl.student.settings import TrainSettings
from edl.student.show.plain import Plain
from edl.student.supervisor.means import Means, Outcome
from edl.student.supervisor.node import Supervisor
from edl.student.supervisor.telling import Teller
from edl.tests.student.supervisor.stand_in import pid_file
from edl.tests.waiting import wait_until

STAND_IN = "edl.tests.student.supervisor.stand_in"
#: Nodes are lost only after longer than a busy machine stalls any.
MEANS = Means(STAND_IN, ttl_s=10.0, gather_s=0.3, room_s=2.0)
JOB = "job"
STEPS = 120


@dataclass
class Node:
    """One supervisor that runs in a thread."""

    name: str
    spec: Path
    supervisor: Supervisor
    stop: Stop
    lines: list[str]
    thread: threading.Thread = field(init=False)
    outcome: Outcome | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.run, name=self.name)
        self.thread.start()

    def run(self) -> None:
        try:
            self.outcome = self.supervisor.run(self.stop)
        except BaseException as error:
            self.error = error

    def kill(self, rank: int) -> None:
        os.kill(int(pid_file(self.spec, self.name, rank).read_text()), signal.SIGKILL)


@dataclass
class Fleet:
    folder: Path
    job: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    board: Any = field(default_factory=MemoryBoard)
    means: Means = MEANS
    nodes: list[Node] = field(default_factory=list)

    def start(self, *names: str) -> Node:
        """Start nodes; the last one."""
        spec = self.folder / "job.json"
        spec.write_text(json.dumps({"steps": STEPS, "step_s": 0.003, **self.job}))
        told = {
            "epochs": 1,
            "total_batch": 4,
            "checkpoint": str(self.folder / "checkpoints"),
            "save_every_steps": 10,
            "hang_s": 30.0,
            "coordinator": "redis://127.0.0.1:1",  # not dialled: the test gives the board
        }
        settings = TrainSettings(str(spec), JOB, **{**told, **self.settings})
        for name in names:
            lines: list[str] = []
            teller = Teller(Plain(lines.append))
            supervisor = Supervisor(settings, self.board, name, "127.0.0.1", teller, self.means)
            self.nodes.append(Node(name, spec, supervisor, Stop(), lines))
        return self.nodes[-1]

    def generation(self) -> int:
        record = self.board.generation(JOB)
        return 0 if record is None else record.number

    def reach(self, step: int) -> None:
        """Wait until a rank has told of `step`."""
        wait_until(lambda: any(int(one.facts["step"]) >= step for one in self.board.reports(JOB)))

    def open_gate(self) -> None:
        """Let ranks go beyond the step that the job file names as `gate`."""
        (self.folder / "job.gate").touch()

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = self.board.events(JOB, count=1000)
        return [dict(one.body) for one in found if one.body["kind"] == kind]

    def end(self) -> None:
        """Wait until all nodes have ended."""
        for node in self.nodes:
            node.thread.join(60.0)
            assert not node.thread.is_alive(), f"{node.name} runs: {node.lines}"

    def finished(self) -> None:
        """All nodes have ended without an error, the last one as the job finished."""
        self.end()
        for node in self.nodes:
            if node.error is not None:
                raise node.error
        assert self.nodes[-1].outcome == Outcome("finished", STEPS, {"accuracy": 0.5})

    def close(self) -> None:
        self.open_gate()
        for node in self.nodes:
            node.stop.request()
        self.end()
