"""Nodes of one job on this machine: processes, each in a slot, and their output."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...runtime.supervise import Command, Process, start, stop_all
from ..cores import children_on
from .spec import QueuedJobSpec

#: Most unread lines of a job that are kept, and most characters of each.
_KEPT_LINES: Final = 2000
_LINE_CHARS: Final = 1000
#: Seconds that a `command` has to end after its runner has died.
_ORPHAN_GRACE_S: Final = 5.0


@dataclass(slots=True)
class NodeProcess:
    """A node that runs or has just ended.

    Attributes:
        number: number of the node among all nodes started for this job, from 1.
        slot: slot of the node.
        process: process of the node.
        leaving: it was told to leave.
        deadline_s: monotonic time at which a leaving node is killed.
    """

    number: int
    slot: int
    process: Process
    leaving: bool = False
    deadline_s: float = 0.0


class NodeGroup:
    """Starts, stops and watches the nodes of one job.

    Used by the runner's thread only. Other threads receive the output of nodes.

    Args:
        spec: spec of the job.
        folder: folder for the whole output of node N in `node-N.log`.
        first: number of the first node.

    Attributes:
        all: nodes that have not ended, as of the latest `poll`.
    """

    def __init__(self, spec: QueuedJobSpec, folder: Path, first: int = 1) -> None:
        self.all: list[NodeProcess] = []
        self._spec, self._folder, self._next = spec, folder, first
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lost = 0

    @property
    def staying(self) -> list[NodeProcess]:
        """Nodes that were not told to leave, oldest first."""
        return [node for node in self.all if not node.leaving]

    @property
    def leaving(self) -> int:
        """Number of nodes that were told to leave."""
        return sum(node.leaving for node in self.all)

    def start(
        self, slot: int, cores: tuple[int, ...], coordinator: str, env: Mapping[str, str]
    ) -> NodeProcess:
        """Start another node.

        Args:
            slot: slot of the node.
            cores: cores of the slot; empty: any core.
            coordinator: Redis URL of the mesh.
            env: environment variables in addition to those of the job.

        Raises:
            ProcessFailed: the program cannot be executed, or the log cannot be written.
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
            process = start(command, echo=lambda line: self._keep(number, line))
        self.all.append(node := NodeProcess(number, slot, process))
        return node

    def remove(self, count: int, now_s: float, within_s: float) -> list[NodeProcess]:
        """Send SIGTERM to the newest `count` nodes; after `within_s`, `poll` kills them.

        Returns:
            The nodes that got the signal, without those that have ended already.
        """
        leaving = [node for node in self.staying[::-1][:count] if node.process.alive]
        for node in leaving:
            node.leaving, node.deadline_s = True, now_s + within_s
            node.process.terminate()
        return leaving

    def shorten_deadlines(self, now_s: float, within_s: float) -> None:
        """Shorten the deadlines of leaving nodes to `within_s` from now, as slots are needed."""
        for node in self.all:
            if node.leaving:
                node.deadline_s = min(node.deadline_s, now_s + within_s)

    def poll(self, now_s: float) -> list[NodeProcess]:
        """Kill leaving nodes after their deadlines; remove and return nodes that have ended."""
        ended = [node for node in self.all if not node.process.alive]
        self.all = [node for node in self.all if node not in ended]
        for node in self.all:
            if node.leaving and now_s > node.deadline_s:
                node.process.kill()
        return ended

    def take_lines(self, most: int) -> list[str]:
        """Remove all lines; return the latest `most`, after a note with the number of others."""
        with self._lock:
            lines, lost = list(self._lines), self._lost
            self._lines.clear()
            self._lost = 0
        lost += max(0, len(lines) - most)
        note = [f"... {lost} lines are left out here: {self._folder} has all"] if lost else []
        return note + lines[-most:]

    def close(self, grace_s: float) -> None:
        """End all nodes; kill those that have not ended after `grace_s` seconds."""
        try:
            stop_all([node.process for node in self.all], grace_s)
        finally:
            self.all.clear()

    def _keep(self, number: int, line: str) -> None:
        with self._lock:
            self._lost += len(self._lines) == self._lines.maxlen
            self._lines.append(f"node {number} | {line[:_LINE_CHARS]}")
