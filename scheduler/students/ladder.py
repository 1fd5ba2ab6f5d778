"""What is done about a rank that failed: start it again, go on without its node, or stop.

Restarting is for what chance did: a killed process, a card that fell off the bus. A node whose rank
fails twice in a row, the second time no further than the first, is left out where the others are
enough. What fails on the same step three times would fail for ever: the job stops and names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

#: How a rank failed: its code raised; it ended by a signal or without a word; it made no progress;
#: its whole node has gone; it went because others were gone, which nobody else has told of.
How = Literal["crash", "killed", "hang", "lost", "adrift"]
#: These say nothing against the step or the node that tells of them.
_BLAMELESS: Final = ("lost", "adrift")

SAME_STEP: Final = 3
IN_VAIN: Final = 6
#: More than any rule looks back at.
REMEMBERED: Final = 24
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank that failed, in one generation.

    Attributes:
        generation: of its world.
        node: its node's id.
        rank: its number in that world; -1: the whole node.
        how: what became of it.
        step: that it was taking, from 1; 0: it was still starting.
        epoch: of that step, from 0.
        positions: of the batch, in the order of the epoch; empty: not known.
        error: one line.
        usage: nothing is to be tried again: the job file, or a setting, is wrong.
        restored: step of the checkpoint that its generation began with.
    """

    generation: int
    node: str
    rank: int = -1
    how: How = "crash"
    step: int = 0
    epoch: int = 0
    positions: tuple[int, ...] = ()
    error: str = ""
    usage: bool = False
    restored: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """What has to be equal for two failures to be on the same step."""
        return (self.step, 0) if self.step else (0, self.restored)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "positions": list(self.positions)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        known = {one.name for one in fields(cls)}
        given = {name: told for name, told in value.items() if name in known}
        return cls(**{**given, "positions": tuple(given.get("positions", ()))})

    def in_words(self) -> str:
        """As in "rank 1 on node a crashed on step 5 of epoch 2 (positions 3, 9): ValueError: x"."""
        if self.how == "lost":
            return f"node {self.node} was lost: {self.error or 'its lease ran out'}"
        did = {"crash": "crashed", "killed": "died", "hang": "hung", "adrift": "lost its peers"}[
            self.how
        ]
        where = f"on step {self.step} of epoch {self.epoch}" if self.step else "while it started"
        batch = f" ({positions_in_words(self.positions)})" if self.positions else ""
        return f"rank {self.rank} on node {self.node} {did} {where}{batch}: {self.error}"


@dataclass(frozen=True, slots=True)
class Restart:
    """The same nodes form the next generation."""


@dataclass(frozen=True, slots=True)
class Without:
    """The others form it; `why` in words."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job stops; `usage`: what the user gave cannot work, whoever tries."""

    report: str
    usage: bool = False


def climb(failures: Sequence[Failure], nodes: Set[str], least: int) -> Restart | Without | GiveUp:
    """The rung to take after the latest generation of `failures`.

    Args:
        failures: of this job, in the order in which they came; the last generation's are new.
        nodes: that could form the next generation, those that failed among them.
        least: nodes that a world needs.
    """
    if not failures:
        return Restart()
    newest = [one for one in failures if one.generation == failures[-1].generation]
    for one in newest:
        if one.usage:
            return GiveUp(one.error or one.in_words(), usage=True)
    for one in newest:
        if (
            one.how not in _BLAMELESS
            and (times := _times_on_the_same_step(one, failures)) >= SAME_STEP
        ):
            return GiveUp(
                f"{one.in_words()}; that step failed {times} times, so it is not tried again"
            )
    if (vain := _in_vain(failures)) >= IN_VAIN:
        return GiveUp(
            f"{newest[0].in_words()}; {vain} generations in a row came no further than step"
            f" {max(one.step for one in failures[-vain:])}, so the job stops"
        )
    node = _fails_again(failures)
    if node and len(nodes - {node}) >= least:
        return Without(node, f"its ranks failed twice in a row: {newest[0].in_words()}")
    return Restart()


def positions_in_words(positions: Iterable[int]) -> str:
    """As in "positions 4-9, 17": runs joined, cut where it gets long."""
    ordered = sorted(set(positions))
    runs: list[list[int]] = []
    for position in ordered:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    more = f" and {len(texts) - _SHOWN} more runs" if len(texts) > _SHOWN else ""
    return f"position{'s' if len(ordered) > 1 else ''} {', '.join(texts[:_SHOWN])}{more}"


def _times_on_the_same_step(one: Failure, failures: Sequence[Failure]) -> int:
    return len({o.generation for o in failures if o.how not in _BLAMELESS and o.place == one.place})


def _of_generations(failures: Sequence[Failure]) -> list[Failure]:
    """The first failure of each generation: the others are often its consequences."""
    firsts: dict[int, Failure] = {}
    for one in failures:
        firsts.setdefault(one.generation, one)
    return list(firsts.values())


def _in_vain(failures: Sequence[Failure]) -> int:
    """How many of the last generations failed that came no further than one before them."""
    firsts = _of_generations(failures)
    count, furthest = 1, firsts[0].step
    for one in firsts[1:]:
        came_further = one.step > furthest or one.restored > max(furthest - 1, 0)
        count = 1 if came_further else count + 1
        furthest = max(furthest, one.step)
    return count


def _fails_again(failures: Sequence[Failure]) -> str:
    """The node that failed in the last two generations and came no further; empty: none."""
    firsts = [one for one in _of_generations(failures) if one.how not in _BLAMELESS]
    if len(firsts) < 2:
        return ""
    before, last = firsts[-2:]
    again = before.node == last.node and last.generation == before.generation + 1
    return last.node if again and last.step <= before.step else ""
