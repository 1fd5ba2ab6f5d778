"""The elastic jobs of a queue as one line of `edl status`, and as JSON.

The JSON form: `{"queue": str, "fleet": host of the agent that runs the jobs, or null, "slots": int,
"taken": number of slots in use, "jobs": {state: number of jobs}}`. Jobs that ran on a fleet
that has no lease any more are counted as "lost".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from ..job_queue import JobProgress, QueueBoard, Runner

#: Shown if there is no fleet.
NO_FLEET: Final = "no agent runs jobs now: start one with 'edl agent jobs --slots N'"


@dataclass(frozen=True, slots=True)
class QueueState:
    """Summary of a queue.

    Attributes:
        queue: its name.
        jobs: number of jobs in each state, including ended jobs that are still kept.
        runner: the agent that runs them; None: there is none.
    """

    queue: str
    jobs: Counter[str]
    runner: Runner | None

    def __bool__(self) -> bool:
        """Whether there is a fleet, or a job that has not ended."""
        return self.runner is not None or any(self.jobs[state] for state in _NOT_ENDED)


_NOT_ENDED = ("running", "scaling", "lost", "creating")
#: State -> its word in `line`, in the order of that line.
_WORDS = {
    "running": "running",
    "scaling": "scaling",
    "lost": "lost",
    "creating": "waiting",
    "failed": "failed",
}


def is_lost(progress: JobProgress, runner: Runner | None) -> bool:
    """Return whether a job's fleet has no lease any more, so that the job's state is outdated."""
    return runner is None and progress.state in ("running", "scaling")


def read_queue(board: QueueBoard, queue: str) -> QueueState:
    """Read the summary of a queue.

    Raises:
        RedisUnavailable: Redis does not answer.
        AccessError: the user may not read it.
    """
    runner, progress = board.runner(), [job.progress for job in board.jobs()]
    states = Counter("lost" if is_lost(job, runner) else job.state for job in progress)
    return QueueState(queue, states, runner)


def to_json(state: QueueState) -> dict[str, Any]:
    """Return the JSON form that the module describes."""
    facts = state.runner.facts if state.runner is not None else {}
    return {
        "queue": state.queue,
        "fleet": None if state.runner is None else facts.get("host", ""),
        "slots": facts.get("slots", 0),
        "taken": len(facts.get("taken", ())),
        "jobs": dict(state.jobs),
    }


def fleet_line(runner: Runner | None) -> str:
    """Describe a fleet and its taken slots."""
    if runner is None:
        return NO_FLEET
    facts = runner.facts
    taken, slots = len(facts.get("taken", ())), facts.get("slots", 0)
    return f"fleet on {facts.get('host') or '?'}: {taken} of {slots} slots taken"


def line(state: QueueState) -> str:
    """Return the line of `edl status`."""
    counts = [f"{state.jobs[name]} {word}" for name, word in _WORDS.items() if state.jobs[name]]
    fleet = fleet_line(state.runner)
    where = "" if state.queue == "main" else f" of queue {state.queue}"
    return f"elastic jobs{where}: {', '.join(counts) or 'none'}; {fleet}"
