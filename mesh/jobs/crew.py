"""The nodes of one job on this machine: processes, each in a slot; what they print."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...supervise import Command, Process, start, stop_all
from ..cores import children_on
from .spec import JobSpec

#: Lines of one job that wait to be handed on, and what of a line is handed on.
_WAITING_LINES: Final = 2000
_LINE_CHARS: Final = 1000
#: Of a foreign program whose runner has died.
_ORPHAN_GRACE_S: Final = 5.0


@dataclass(slots=True)
class Node:
    """A node that runs, or has just ended.

    Attributes:
        number: of this job's nodes, from 1; each start is another one.
        slot: that it has.
        process: that it is.
        told: it was told to leave.
        deadline_s: when it is killed, by the monotonic clock; of one that was told.
    """

    number: int
    slot: int
    process: Process
    told: bool = False
    deadline_s: float = 0.0


class Crew:
    """See the module. Used by the runner's thread alone; what nodes print comes from others.

    Args:
        spec: of the job.
        folder: where each node's whole output goes, as `node-N.log`.
        first: number of the first node.
    """

    def __init__(self, spec: JobSpec, folder: Path, first: int = 1) -> None:
        self.nodes: list[Node] = []
        self._spec, self._folder, self._next = spec, folder, first
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_WAITING_LINES)
        self._lost = 0

    @property
    def staying(self) -> list[Node]:
        """Those that were not told to leave, oldest first."""
        return [node for node in self.nodes if not node.told]

    @property
    def leaving(self) -> int:
        return sum(node.told for node in self.nodes)

    def start(
        self, slot: int, cores: tuple[int, ...], coordinator: str, env: Mapping[str, str]
    ) -> Node:
        """Start one more node.

        Args:
            slot: that it gets.
            cores: of that slot; none: any.
            coordinator: Redis URL of the mesh.
            env: variables beside those of the job.

        Raises:
            ProcessFailed: its program cannot be executed, or its log not be written.
        """
        number, self._next = self._next, self._next + 1
        own = {
            "EDL_JOB": self._spec.name,
            "EDL_JOB_NODE": str(number),
            "EDL_JOB_SLOT": str(slot),
            "EDL_COORDINATOR": coordinator,
        }
        command = Command(
            f"{self._spec.name}-{number}",
            self._spec.arguments(self._folder),
            env={**own, **env, **self._spec.env},
            cwd=self._spec.folder,
            log=self._folder / f"node-{number}.log",
            guard=not self._spec.trains,
            orphan_grace_s=_ORPHAN_GRACE_S,
        )
        with children_on(cores) if cores else contextlib.nullcontext():
            process = start(command, echo=lambda line: self._heard(number, line))
        self.nodes.append(node := Node(number, slot, process))
        return node

    def leave(self, count: int, now_s: float, within_s: float) -> list[Node]:
        """Tell the newest nodes to leave, by SIGTERM, and kill them when they are late.

        One that has ended in the meantime is not told: how it ended has to be noted.
        """
        told = [node for node in self.staying[::-1][:count] if node.process.alive]
        for node in told:
            node.told, node.deadline_s = True, now_s + within_s
            node.process.send_signal(signal.SIGTERM)
            node.process.send_signal(signal.SIGCONT)  # a suspended one could not act on it
        return told

    def hurry(self, now_s: float, within_s: float) -> None:
        """Somebody waits for a slot: those that are leaving have so long at most."""
        for node in self.nodes:
            if node.told:
                node.deadline_s = min(node.deadline_s, now_s + within_s)

    def turn(self, now_s: float) -> list[Node]:
        """Kill those that are late; returns those that have ended, which are nodes no more."""
        ended = [node for node in self.nodes if not node.process.alive]
        self.nodes = [node for node in self.nodes if node not in ended]
        for node in self.nodes:
            if node.told and now_s > node.deadline_s:
                node.process.kill()
        return ended

    def lines(self, most: int) -> list[str]:
        """Take what nodes have printed: the last lines, and how many before them are left out."""
        with self._lock:
            taken, lost = list(self._lines), self._lost
            self._lines.clear()
            self._lost = 0
        lost += max(0, len(taken) - most)
        note = [f"... {lost} lines are left out here: {self._folder} has all"] if lost else []
        return note + taken[-most:]

    def close(self, grace_s: float) -> None:
        """End all of them."""
        try:
            stop_all([node.process for node in self.nodes], grace_s)
        finally:
            self.nodes.clear()

    def _heard(self, number: int, line: str) -> None:
        with self._lock:
            self._lost += len(self._lines) == self._lines.maxlen
            self._lines.append(f"node {number} | {line[:_LINE_CHARS]}")
