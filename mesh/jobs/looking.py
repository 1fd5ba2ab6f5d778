"""How far a training is, as its ranks tell it on the job board."""

from __future__ import annotations

from dataclasses import dataclass

from ...coordinator.jobs import JobBoard
from ...errors import EdlError


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a training.

    Attributes:
        progress: share of its steps that are done, 0..1; None: not known.
        steady: all of its nodes are in a world that has made a step.
        step: the last one; 0: none.
        steps: of the whole training; 0: not known.
    """

    progress: float | None = None
    steady: bool = False
    step: int = 0
    steps: int = 0


def look(board: JobBoard, job: str, nodes: int) -> Sight:
    """Look at a training; where the board does not answer nothing is known.

    Args:
        board: of the mesh.
        job: name of the training.
        nodes: that it has on this machine.
    """
    try:
        return read(board, job, nodes)
    except EdlError:
        return Sight()


def read(board: JobBoard, job: str, nodes: int) -> Sight:
    """As `look`, for who tells silence from a training that begins.

    Raises:
        EdlError: the board does not answer; see `JobBoard`.
    """
    reports = [one.facts for one in board.reports(job)]
    generation = board.generation(job)
    stepped = [facts for facts in reports if _count(facts.get("step"))]
    if not stepped or generation is None:
        return Sight()
    step = max(_count(facts.get("step")) for facts in stepped)
    steps = max(_count(facts.get("steps")) for facts in stepped)
    world = generation.body.get("nodes")
    steady = isinstance(world, list) and len(world) == nodes
    return Sight(min(step, steps) / steps if steps else None, steady, step, steps)


def _count(told: object) -> int:
    """A number of steps, as it stands in Redis; 0: none, or something that no rank has written."""
    return told if isinstance(told, int) and told > 0 else 0
