"""The state of an elastic job: how its nodes end, when it is over, and when a node is retried.

A job has succeeded when a node has finished and no node runs any more, even if others failed after
that. It has failed when its nodes failed more often than may be retried, or when a node failed in a
way that a retry would repeat. The end of a node that was asked to leave counts neither as a success
nor as a failure, except that an `edl student train` that exits with 0 has always finished.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from .backoff import ceiling_s

#: "creating": no node runs, or the job has not yet had its minimum of nodes. "running": it has its
#: target number of nodes, or a node has finished and the others are ending. "scaling": nodes are
#: starting or leaving, also if the job stops or has failed. The other states are final.
ElasticJobState = Literal["creating", "running", "scaling", "succeeded", "failed", "stopped"]
#: How a node ended. "left": it was asked to leave; "done": the job is finished; "failed": a retry
#: may work; "hopeless": a retry would fail too; "refused": the same, but the job goes on.
NodeEnding = Literal["left", "done", "failed", "hopeless", "refused"]

#: Exit code of an `edl` command that got wrong options or files: a retry would fail too.
USAGE_CODE: Final = 2
_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 30.0


def ending_of(code: int, leaving: bool, is_edl: bool, others_suffice: bool = False) -> NodeEnding:
    """Classify the end of a node.

    Args:
        code: its exit code, -N after signal N.
        leaving: it was asked to leave.
        is_edl: it is an `edl student train`, with known exit codes: -N if it left after signal N,
            0 if the training is finished, `USAGE_CODE` if it can never work.
        others_suffice: the job has its minimum of nodes without it.
    """
    if leaving and not (is_edl and code == 0):
        return "left"
    if code == 0:
        return "done"
    if not is_edl or code != USAGE_CODE:
        return "failed"
    return "refused" if others_suffice else "hopeless"


@dataclass(frozen=True, slots=True)
class NodeEndings:
    """How the nodes of a job have ended so far.

    Attributes:
        retries: number of failed nodes that the job survives.
        failures: number of failed nodes; nodes that fail together count once.
        done: a node has finished.
        hopeless: a node has failed in a way that a retry would repeat.
        refused: the same, but the job had enough other nodes.
    """

    retries: int = 0
    failures: int = 0
    done: bool = False
    hopeless: bool = False
    refused: bool = False

    def after(self, ending: NodeEnding, *, pausing: bool = False) -> NodeEndings:
        """Add the end of one more node.

        Args:
            ending: how it ended.
            pausing: it ended within `delay_s` after another node's failure. Nodes that fail
                together count once: they mostly have one cause, and this cause must not use up all
                retries of a large job.
        """
        if ending == "left" or self.done or (ending == "failed" and pausing):
            return self
        match ending:
            case "done":
                return replace(self, done=True)
            case "failed":
                return replace(self, failures=self.failures + 1)
            case "refused":
                return replace(self, refused=True)
            case "hopeless":
                return replace(self, failures=self.failures + 1, hopeless=True)

    @property
    def broken(self) -> bool:
        """Whether the job has failed: its other nodes should leave."""
        return self.hopeless or self.failures > self.retries

    @property
    def may_start_nodes(self) -> bool:
        return not (self.done or self.broken)

    @property
    def delay_s(self) -> float:
        """Seconds to wait after a failure before another node starts."""
        return ceiling_s(max(self.failures - 1, 0), _FIRST_DELAY_S, _LONGEST_DELAY_S)


def limits_of(
    endings: NodeEndings, min_nodes: int, max_nodes: int, *, node_limit: int | None, nodes: int
) -> tuple[int, int]:
    """Return the lower and the upper limit of a job's number of nodes now.

    Args:
        endings: the endings of its nodes.
        min_nodes: lower limit, as submitted.
        max_nodes: upper limit, as submitted.
        node_limit: upper limit that was requested later; None: none was requested.
        nodes: running nodes that were not asked to leave.
    """
    if not endings.may_start_nodes:  # the job ends: its nodes become fewer, never more
        max_nodes = max(1, nodes)
        return min(min_nodes, max_nodes), max_nodes
    if node_limit is not None:  # a limit reduces the nodes, but not below the minimum
        max_nodes = max(min_nodes, min(node_limit, max_nodes))
    if endings.refused and nodes >= min_nodes:  # further nodes would be refused, too
        max_nodes = min(max_nodes, nodes)
    return min_nodes, max_nodes


def state_of(
    endings: NodeEndings,
    *,
    stop: bool,
    target: int,
    min_nodes: int,
    nodes: int,
    leaving: int,
    begun: bool,
) -> ElasticJobState:
    """Return the state of a job.

    Args:
        endings: the endings of its nodes.
        stop: the job should stop.
        target: its target number of nodes.
        min_nodes: its minimum number of nodes.
        nodes: running nodes that were not asked to leave.
        leaving: running nodes that were asked to leave.
        begun: the job has had `min_nodes` nodes before.
    """
    if nodes + leaving == 0:
        if endings.broken:
            return "failed"
        if endings.done:
            return "succeeded"
        return "stopped" if stop else "creating"
    if stop or endings.broken:
        return "scaling"
    if endings.done:  # the last nodes are ending
        return "running"
    if not begun and nodes < min_nodes:
        return "creating"
    return "running" if nodes == target and not leaving else "scaling"
