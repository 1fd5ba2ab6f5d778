"""A job that this machine runs: its nodes, its state, and the progress of its training."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ...coordinator.job_queue import JobProgress, QueuedJob
from ...coordinator.jobs import JobBoard
from ...runtime.errors import EdlError
from ...runtime.supervise import Command, Process, describe_exit, start
from ...scheduler.elastic_values import ElasticJob
from ...scheduler.job_states import NodeEndings, ending_of, limits_of, state_of
from ..cores import on_cores
from .spec import QueuedJobSpec

log = logging.getLogger(__name__)

#: Maximum number of lines of a job that wait for `pass_lines`, and of characters per line.
_KEPT_LINES: Final = 2000
_LINE_CHARS: Final = 1000
#: Seconds in which a node of a job with `command:` has to end after its runner has died.
_ORPHAN_GRACE_S: Final = 5.0


@dataclass(slots=True)
class NodeProcess:
    """A node that runs or has just ended.

    Attributes:
        number: number of the node among all nodes started for this job, from 1.
        slot: slot of the node.
        process: process of the node.
        leaving: whether the node was sent SIGTERM.
        deadline_s: monotonic time at which a leaving node is killed.
    """

    number: int
    slot: int
    process: Process
    leaving: bool = False
    deadline_s: float = 0.0


class NodeGroup:
    """Starts, stops and watches the nodes of one job.

    Only the runner's thread calls the methods. Other threads receive the output of nodes.

    Args:
        spec: spec of the job.
        folder: folder of the logs; `node-N.log` has the whole output of node N.
        first: number of the first node.

    Attributes:
        all: nodes that have not ended, as of the latest `poll`.
    """

    def __init__(self, spec: QueuedJobSpec, folder: Path, first: int = 1) -> None:
        self.all: list[NodeProcess] = []
        self._spec, self._folder, self._next_number = spec, folder, first
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._dropped = 0

    @property
    def staying(self) -> list[NodeProcess]:
        """Nodes that were not sent SIGTERM, oldest first."""
        return [node for node in self.all if not node.leaving]

    @property
    def leaving_count(self) -> int:
        """Number of nodes that were sent SIGTERM and have not ended."""
        return sum(node.leaving for node in self.all)

    def start(
        self, slot: int, cores: tuple[int, ...], coordinator: str, env: Mapping[str, str]
    ) -> NodeProcess:
        """Start another node.

        Args:
            slot: slot of the node.
            cores: cores of the slot. The node runs on any core if this is empty, or if the system
                has none of these cores any more.
            coordinator: Redis URL of the mesh.
            env: environment variables in addition to those of the job.

        Raises:
            ProcessFailed: the program cannot be executed, or the log cannot be written.
        """
        number = self._next_number
        node_env = {
            "EDL_JOB": self._spec.name,
            "EDL_JOB_NODE": str(number),
            "EDL_JOB_SLOT": str(slot),
            "EDL_COORDINATOR": coordinator,
        }
        command = Command(
            f"{self._spec.name}-{number}",
            self._spec.arguments(self._folder),
            env={**node_env, **env, **self._spec.env},
            cwd=self._spec.folder,
            log=self._folder / f"node-{number}.log",
            guard=not self._spec.trains,
            orphan_grace_s=_ORPHAN_GRACE_S,
        )
        with contextlib.ExitStack() as stack:
            try:
                if cores:
                    stack.enter_context(on_cores(cores))
            except OSError:  # the machine or container has lost these cores since the start
                log.warning("%s runs on any core: cores %s are gone", command.name, list(cores))
            process = start(command, echo=lambda line: self._buffer_line(number, line))
        self._next_number += 1
        self.all.append(node := NodeProcess(number, slot, process))
        return node

    def remove(self, count: int, now_s: float, within_s: float) -> list[NodeProcess]:
        """Send SIGTERM to the newest `count` staying nodes; after `within_s`, `poll` kills them.

        Returns:
            The nodes that got the signal, without those that have ended already.
        """
        leaving = [node for node in self.staying[::-1][:count] if node.process.alive]
        for node in leaving:
            node.leaving, node.deadline_s = True, now_s + within_s
            node.process.terminate()
        return leaving

    def shorten_deadlines(self, now_s: float, within_s: float) -> None:
        """End all leaving nodes in at most `within_s` from now, because others need slots."""
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

    def pass_lines(self, most: int, write: Callable[[list[str]], object]) -> None:
        """Pass the latest `most` lines to `write`, after a note if older lines are left out.

        Removes all lines. If `write` raises EdlError, they are kept for the next call instead.
        """
        with self._lock:
            lines, dropped = list(self._lines), self._dropped
            self._lines.clear()
            self._dropped = 0
        omitted = dropped + max(0, len(lines) - most)
        note = [f"... {omitted} lines are left out here: {self._folder} has all"]
        try:
            if lines:
                write((note if omitted else []) + lines[-most:])
        except EdlError:
            with self._lock:
                newer = list(self._lines)
                self._dropped += dropped + max(0, len(lines) + len(newer) - _KEPT_LINES)
                self._lines = deque(lines + newer, _KEPT_LINES)
            raise

    def _buffer_line(self, number: int, line: str) -> None:
        with self._lock:
            self._dropped += len(self._lines) == self._lines.maxlen
            self._lines.append(f"node {number} | {line[:_LINE_CHARS]}")


def next_node(folder: Path) -> int:
    """Return the number of the next node of a job, by the logs of earlier nodes in its folder."""
    numbers = (log.stem.removeprefix("node-") for log in folder.glob("node-*.log"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training.

    Attributes:
        progress: share of completed steps, 0 to 1; None: unknown.
        steady: whether the training's generation has completed a step, and no node is about to join
            it: it has all nodes of this machine, or a step has too few rows for the ranks of one
            more node.
    """

    progress: float | None = None
    steady: bool = False


def progress_or_unknown(board: JobBoard, job: str, nodes: int) -> TrainingProgress:
    """Return the progress of a training; unknown if the board does not answer.

    Args:
        board: board with the reports of its ranks.
        job: name of the training.
        nodes: number of its nodes on this machine.
    """
    try:
        return read_progress(board, job, nodes)
    except EdlError:
        return TrainingProgress()


def read_progress(board: JobBoard, job: str, nodes: int) -> TrainingProgress:
    """Return the progress of a training like `progress_or_unknown`, but raise errors of the board.

    Raises:
        EdlError: see `JobBoard`.
    """
    reports = [one.facts for one in board.reports(job)]
    generation = board.generation(job)
    with_steps = [facts for facts in reports if _count(facts.get("step"))]
    if not with_steps or generation is None:
        return TrainingProgress()
    step, steps, rows = (
        max(_count(facts.get(key)) for facts in with_steps)
        for key in ("step", "steps", "total_batch")
    )
    members = generation.body.get("nodes")
    steady = isinstance(members, list) and (
        len(members) == nodes or 0 < rows < len(reports) + len(reports) / max(len(members), 1)
    )
    return TrainingProgress(min(step, steps) / steps if steps else None, steady)


def _count(value: object) -> int:
    """Return a number of steps or rows from Redis; 0 if it is missing or invalid."""
    return value if isinstance(value, int) and value > 0 else 0


#: Number of last lines of a failed node in the reason of its job, and maximum number of characters
#: of the reason.
_LAST_LINES: Final = 3
_REASON_CHARS: Final = 600
_LEAVING: Final = "its nodes are leaving: "


class JobRun:
    """A job of the queue that this machine runs, with its nodes.

    Used by the runner's thread only.

    Args:
        job: the job in the queue.
        spec: parsed spec of the job.
        folder: folder for logs and checkpoints of this submission.
        submitted_s: time of submission, by the runner's monotonic clock.
        first_node: number of the first node of this run.

    Attributes:
        nodes: node processes.
        endings: how nodes of the job have ended.
        target: wanted number of nodes.
        reason: reason of the target.
        training: progress of the training; of a `command`: unknown and steady.
        not_before_s: monotonic time before which no node is started, because a node has failed.
        reported: progress that the queue has; None: the progress must be sent.
        replaced: whether the queue has a new job of this name, which starts when these nodes have
            ended.
    """

    def __init__(
        self, job: QueuedJob, spec: QueuedJobSpec, folder: Path, submitted_s: float, first_node: int
    ) -> None:
        self.job, self.spec, self._submitted_s = job, spec, submitted_s
        self.nodes = NodeGroup(spec, folder, first_node)
        before = job.progress
        self.endings = NodeEndings(spec.retries, before.failures, before.done, before.hopeless)
        self.target, self.reason = 0, "submitted"
        self.training = TrainingProgress(steady=not spec.trains)
        self.not_before_s = 0.0
        self.reported: JobProgress | None = None
        self.replaced = False
        self._begun_ms = before.first_ms
        self._refusal = ""
        self._why_failed = before.reason.removeprefix(_LEAVING) if self.endings.broken else ""

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def stopping(self) -> bool:
        """Whether all nodes should end, and no node may be started."""
        return self.replaced or self.job.desired.stop or self.endings.broken

    @property
    def limits(self) -> tuple[int, int]:
        """Least and greatest number of nodes that the job should have now."""
        return limits_of(
            self.endings,
            self.spec.min_nodes,
            self.spec.max_nodes,
            node_limit=self.job.desired.nodes,
            nodes=len(self.nodes.staying),
        )

    def view(self) -> ElasticJob | None:
        """Return the job as input of `scheduler.elastic`; None: there is nothing to decide."""
        if self.stopping or (not self.endings.may_start_nodes and not self.nodes.staying):
            return None
        least, most = self.limits
        return ElasticJob(
            self.name,
            least,
            most,
            self.target
            if self.endings.may_start_nodes
            else min(self.target, len(self.nodes.staying)),
            self.nodes.leaving_count,
            priority=self.spec.priority,
            submitted_s=self._submitted_s,
            progress=self.training.progress,
            steady=self.training.steady or not self.nodes.staying,
        )

    def record_end(self, node: NodeProcess, now_s: float) -> str:
        """Record the end of a node; return a description."""
        code = node.process.returncode or 0
        others_suffice = len(self.nodes.staying) >= self.spec.min_nodes
        ending = ending_of(code, node.leaving, self.spec.trains, others_suffice)
        self.endings = self.endings.after(ending, pausing=now_s < self.not_before_s)
        ended = f"node {node.number} {describe_exit(code)}"
        if ending == "left":
            return f"{ended}, as it was told to"
        if ending == "done":
            return ended
        self.not_before_s = now_s + self.endings.delay_s
        last = _last_lines(node.process.tail(20))
        self._why_failed = f"{ended}; {f'its last lines: {last}' if last else 'it printed nothing'}"
        if ending == "refused":
            self._refusal = f"no node is added: {self._why_failed}"
        return self._why_failed

    def record_failed_start(self, why: str, now_s: float) -> None:
        """Record that a node could not be started."""
        self.endings = self.endings.after("failed")
        self.not_before_s = now_s + self.endings.delay_s
        self._why_failed = why

    def progress(self, now_ms: int) -> JobProgress:
        """Return the progress to report to the queue.

        Args:
            now_ms: time in milliseconds by the queue's clock.
        """
        staying, leaving = len(self.nodes.staying), self.nodes.leaving_count
        least, _ = self.limits
        if not self._begun_ms and staying >= least:
            self._begun_ms = now_ms
        state = state_of(
            self.endings,
            stop=self.job.desired.stop,
            target=self.target,
            min_nodes=least,
            nodes=staying,
            leaving=leaving,
            begun=bool(self._begun_ms),
        )
        progress = JobProgress(
            state,
            0 if self.stopping else self.target,
            staying + leaving,
            self._reason_of(state),
            self._begun_ms,
            0,
            self.endings.failures,
            tuple(sorted(node.slot for node in self.nodes.all)),
            self.endings.done,
            self.endings.hopeless,
        )
        return replace(progress, ended_ms=now_ms) if progress.ended else progress

    def _reason_of(self, state: str) -> str:
        match state:
            case "succeeded":
                return "a node has finished, and no other is left"
            case "stopped":
                return "it was asked to stop"
            case "failed":
                count = self.endings.failures
                total = f"{count} failures, the last: " if count > 1 else ""
                return f"{total}{self._why_failed}"[:_REASON_CHARS]
        if self.stopping:
            why = "it was asked to stop" if self.job.desired.stop else self._why_failed
            return f"{_LEAVING}{why}"[:_REASON_CHARS]
        if not self.endings.may_start_nodes:
            return "a node has finished; waiting for the others"
        if self.endings.failures and len(self.nodes.staying) < self.target:
            return f"a node is started again: {self._why_failed}"[:_REASON_CHARS]
        return (self._refusal or self.reason)[:_REASON_CHARS]


def _last_lines(lines: Sequence[str]) -> str:
    printed = [line.strip() for line in lines if line.strip()]
    return " | ".join(printed[-_LAST_LINES:])
