"""One job as its runner sees it: what was submitted, its nodes here, what has become of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ...coordinator.queue import Progress, QueuedJob
from ...scheduler.elastic_values import ElasticJob, Target
from ...scheduler.job_states import NodeEndings, ending_of, limits_of, state_of
from ...supervise import describe_exit
from .crew import Crew, Node
from .looking import Sight
from .spec import JobSpec

#: Lines that a failed node printed last, and how much of them, in the reason of its job.
_LAST_LINES: Final = 3
_REASON_CHARS: Final = 600


class Account:
    """Used by the runner's thread alone.

    Args:
        job: as it stands in the queue.
        spec: what was submitted, understood.
        folder: of this submission, for logs and checkpoints.
        submitted_s: when, by the runner's monotonic clock.
        first_node: number of its next node.
    """

    def __init__(
        self, job: QueuedJob, spec: JobSpec, folder: Path, submitted_s: float, first_node: int
    ) -> None:
        self.job, self.spec, self._submitted_s = job, spec, submitted_s
        self.crew = Crew(spec, folder, first_node)
        self.life = NodeEndings(spec.retries, job.progress.failures)
        self.target = 0
        self.sight = Sight(steady=not spec.trains)
        self.not_before_s = 0.0  # when a node may be started after one has failed
        self.told: Progress | None = None  # what the queue knows
        self.replaced = False  # another job of this name begins when these nodes have left
        self._first_ms = job.progress.first_ms
        self._why_failed = ""
        self._reason = "submitted"

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def stopping(self) -> bool:
        """Whether nothing but its end is wanted: no node is to be started."""
        return self.replaced or self.job.wish.stop or self.life.broken

    @property
    def limits(self) -> tuple[int, int]:
        """The fewest and the most nodes that are wanted now."""
        return limits_of(
            self.life,
            self.spec.min_nodes,
            self.spec.max_nodes,
            asked=self.job.wish.nodes,
            nodes=len(self.crew.staying),
        )

    def view(self) -> ElasticJob | None:
        """What the rule of sharing sees; None: there is nothing to decide."""
        if self.stopping or (not self.life.grows and not self.crew.staying):
            return None
        least, most = self.limits
        return ElasticJob(
            self.name,
            least,
            most,
            min(self.target, len(self.crew.staying)) if not self.life.grows else self.target,
            self.crew.leaving,
            priority=self.spec.priority,
            submitted_s=self._submitted_s,
            progress=self.sight.progress,
            steady=self.sight.steady or not self.crew.staying,
        )

    def aim(self, target: Target) -> None:
        """What the rule decided."""
        self.target, self._reason = target.nodes, target.reason

    def wait(self, why: str) -> None:
        """It has no node, and gets none for now."""
        self.target, self._reason = 0, why

    def ended(self, node: Node, now_s: float) -> str:
        """A node has ended; returns what is said of it."""
        code = node.process.returncode or 0
        ending = ending_of(code, node.told, self.spec.trains)
        self.life = self.life.after(ending, pausing=now_s < self.not_before_s)
        words = f"node {node.number} {describe_exit(code)}"
        if ending == "left":
            return f"{words}, as it was told to"
        if ending == "done":
            return words
        self.not_before_s = now_s + self.life.delay_s
        last = _last_words(node.process.tail(20))
        self._why_failed = f"{words}; {f'its last lines: {last}' if last else 'it said nothing'}"
        return self._why_failed

    def failed_to_start(self, why: str, now_s: float) -> None:
        """A node could not even be started."""
        self.life = self.life.after("failed")
        self.not_before_s = now_s + self.life.delay_s
        self._why_failed = why

    def progress(self, now_ms: int) -> Progress:
        """How the job does, for the queue.

        Args:
            now_ms: by the queue's clock.
        """
        staying, leaving = len(self.crew.staying), self.crew.leaving
        least, _ = self.limits
        if not self._first_ms and staying >= least:
            self._first_ms = now_ms
        state = state_of(
            self.life,
            stop=self.job.wish.stop,
            target=self.target,
            least=least,
            nodes=staying,
            leaving=leaving,
            begun=bool(self._first_ms),
        )
        told = Progress(
            state,
            0 if self.stopping else self.target,
            staying + leaving,
            self._said(state),
            self._first_ms,
            0,
            self.life.failures,
            tuple(sorted(node.slot for node in self.crew.nodes)),
        )
        return replace(told, ended_ms=now_ms) if told.ended else told

    def _said(self, state: str) -> str:
        match state:
            case "succeeded":
                return "a node has ended well, and no other is left"
            case "stopped":
                return "it was asked to stop"
            case "failed":
                again = "" if self.life.hopeless else f"{self.life.failures} nodes ended badly: "
                return f"{again}{self._why_failed}"[:_REASON_CHARS]
        if self.stopping:
            why = "it was asked to stop" if self.job.wish.stop else self._why_failed
            return f"its nodes are leaving: {why}"[:_REASON_CHARS]
        if not self.life.grows:
            return "a node has ended well; the last ones are waited for"
        if self.life.failures and len(self.crew.staying) < self.target:
            return f"a node is started again: {self._why_failed}"[:_REASON_CHARS]
        return self._reason[:_REASON_CHARS]


def _last_words(lines: Sequence[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    return " | ".join(said[-_LAST_LINES:])
