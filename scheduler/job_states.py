"""What becomes of a job as its nodes come and end: its state, when it is over, when one is retried.

A job is done when a node of it has ended well by itself, and no other one is left; it has failed
when more of its nodes ended badly than are tried again. Nodes that were told to leave just go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from .backoff import ceiling_s

#: creating: no node has run yet, or none runs for now; running: as many nodes as it is to have;
#: scaling: on the way there; the others are ends.
ElasticJobState = Literal["creating", "running", "scaling", "succeeded", "failed", "stopped"]
#: left: it was told to; done: the job is at its end; failed: it may be tried again; hopeless: it
#: would fail again.
NodeEnding = Literal["left", "done", "failed", "hopeless"]

#: Of a node of `edl student train` that cannot work, whoever tries.
USAGE_CODE: Final = 2
_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 30.0


def ending_of(code: int, told: bool, trains: bool) -> NodeEnding:
    """How a node ended.

    Args:
        code: its exit code, -N after signal N.
        told: it was told to leave.
        trains: it is an `edl student train`, whose exit codes are known: after having left it ends
            by the signal, with 0 when the training is finished, with 2 when it can never work.
    """
    if told and not (trains and code == 0):
        return "left"
    if code == 0:
        return "done"
    return "hopeless" if trains and code == USAGE_CODE else "failed"


@dataclass(frozen=True, slots=True)
class NodeEndings:
    """What has become of the nodes of a job so far.

    Attributes:
        retries: nodes that may end badly before the job has failed.
        failures: nodes that did; those that did so together count once.
        done: a node has ended well.
        hopeless: a node has failed as the next one would.
    """

    retries: int = 0
    failures: int = 0
    done: bool = False
    hopeless: bool = False

    def after(self, ending: NodeEnding, *, pausing: bool = False) -> NodeEndings:
        """One more node has ended.

        Args:
            ending: how.
            pausing: within `delay_s` of another node's failure. Nodes that fail together, mostly by
                one cause, use one retry: else a job of many nodes would have none left at once.
        """
        match ending:
            case "failed" if pausing:
                return self
            case "left":
                return self
            case "done":
                return replace(self, done=True)
            case "failed":
                return replace(self, failures=self.failures + 1)
            case "hopeless":
                return replace(self, failures=self.failures + 1, hopeless=True)

    @property
    def broken(self) -> bool:
        """Whether the job has failed: its other nodes are to leave."""
        return self.hopeless or self.failures > self.retries

    @property
    def grows(self) -> bool:
        """Whether nodes of it may still be started."""
        return not (self.done or self.broken)

    @property
    def delay_s(self) -> float:
        """Seconds from a node's bad end to the start of another one."""
        return ceiling_s(max(self.failures - 1, 0), _FIRST_DELAY_S, _LONGEST_DELAY_S)


def limits_of(
    life: NodeEndings, least: int, most: int, *, asked: int | None, nodes: int
) -> tuple[int, int]:
    """The fewest and the most nodes that a job may have now.

    Args:
        life: of its nodes.
        least: as it was submitted.
        most: likewise.
        asked: run with so many at most; None: nobody has asked for fewer.
        nodes: that run and were not told to leave.
    """
    if not life.grows:  # the last nodes of one that is at its end: fewer, never more
        most = max(1, nodes)
        return min(least, most), most
    if asked is not None:  # where there is less room: less, not none
        most = max(least, min(asked, most))
    return least, most


def state_of(
    life: NodeEndings, *, stop: bool, target: int, least: int, nodes: int, leaving: int, begun: bool
) -> ElasticJobState:
    """The state of a job.

    Args:
        life: of its nodes.
        stop: it is to be stopped.
        target: nodes that it is to have.
        least: nodes without which it does not run.
        nodes: that run and were not told to leave.
        leaving: that run and were.
        begun: it has had `least` nodes before.
    """
    if nodes + leaving == 0:
        if life.broken:
            return "failed"
        if life.done:
            return "succeeded"
        return "stopped" if stop else "creating"
    if stop or life.broken:
        return "scaling"
    if life.done:  # the last nodes of one that is at its end
        return "running"
    if not begun and nodes < least:
        return "creating"
    return "running" if nodes == target and not leaving else "scaling"
