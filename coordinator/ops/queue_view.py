"""The elastic jobs of a queue in one line of `edl status`: `edl get jobs` has a row for each.

The JSON form: `{"queue": str, "fleet": host of who runs them or null, "slots": int, "taken": int,
"jobs": {state, or "lost": how many}}`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from ..queue import JobProgress, QueueBoard, Runner

#: Said where a fleet would be told of.
NOBODY: Final = "nobody runs jobs now: 'edl agent jobs --slots N' does"


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a queue holds.

    Attributes:
        queue: its name.
        jobs: how many are in each state, ended ones too as long as they are kept.
        runner: who runs them; None: nobody.
    """

    queue: str
    jobs: Counter[str]
    runner: Runner | None

    def __bool__(self) -> bool:
        return self.runner is not None or any(self.jobs[state] for state in _GOING)


_GOING = ("running", "scaling", "lost", "creating")
#: In the order and the words of the line.
_WORDS = {
    "running": "running",
    "scaling": "scaling",
    "lost": "lost",
    "creating": "waiting",
    "failed": "failed",
}


def is_lost(progress: JobProgress, runner: Runner | None) -> bool:
    """Whether a job's fleet is not heard of any more, so that the state of its nodes is old."""
    return runner is None and progress.state in ("running", "scaling")


def read_queue(board: QueueBoard, queue: str) -> QueueState:
    """How it stands.

    Raises:
        RegistryUnavailable: Redis does not answer.
        AccessError: who asks may not read it.
    """
    runner, told = board.runner(), [job.progress for job in board.jobs()]
    states = Counter("lost" if is_lost(one, runner) else one.state for one in told)
    return QueueState(queue, states, runner)


def to_json(state: QueueState) -> dict[str, Any]:
    """The structure that the head of this file describes."""
    facts = state.runner.facts if state.runner is not None else {}
    return {
        "queue": state.queue,
        "fleet": None if state.runner is None else facts.get("host", ""),
        "slots": facts.get("slots", 0),
        "taken": len(facts.get("taken", ())),
        "jobs": dict(state.jobs),
    }


def line(state: QueueState) -> str:
    """For people."""
    counts = [f"{state.jobs[one]} {word}" for one, word in _WORDS.items() if state.jobs[one]]
    told = to_json(state)
    fleet = NOBODY
    if state.runner is not None:
        fleet = f"fleet on {told['fleet'] or '?'}: {told['taken']} of {told['slots']} slots taken"
    where = "" if state.queue == "main" else f" of queue {state.queue}"
    return f"elastic jobs{where}: {', '.join(counts) or 'none'}; {fleet}"
