"""What a checkpoint holds of a feed: what all ranks have trained, by the states of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ...scheduler.students.shards import Ranges

#: JSON values.
State = Mapping[str, Any]


def merged(states: Sequence[State], base: State | None) -> dict[str, Any]:
    """The feed's part of a checkpoint.

    Args:
        states: `state()` of the sources of all ranks, in the order of ranks, all at one step.
        base: that part of the checkpoint that the generation began with; None: it began without.
    """
    if states[0]["kind"] != "sharded":
        return {"kind": states[0]["kind"], "ranks": [dict(state) for state in states]}
    trained = dict(restored(base))
    for state in states:
        for epoch, ranges in _trained(state).items():
            trained[epoch] = trained.get(epoch, Ranges()).union(ranges)
    return {
        "kind": "sharded",
        "order": states[0]["order"],
        "trained": {str(epoch): ranges.to_json() for epoch, ranges in sorted(trained.items())},
    }


def restored(saved: State | None) -> dict[int, Ranges]:
    """By epoch, the positions that are trained by what `merged` gave; none of feeds without ids."""
    return {} if saved is None or saved["kind"] != "sharded" else _trained(saved)


def check_fits(saved: State | None, kind: str, order: State | None, world: int) -> None:
    """Raises UsageError where a checkpoint's part is not of this feed.

    Args:
        saved: what `merged` gave.
        kind: of the present source.
        order: what identifies its order; None: it has none.
        world: ranks; those of a feed without ids are as many as before.
    """
    if saved is None:
        return
    if (saved["kind"] == "sharded") != (kind == "sharded"):
        raise UsageError(
            f"the checkpoint is of a feed of kind {saved['kind']!r}, and feed('train') is of kind"
            f" {kind!r} now; give the feed that it was made with, or an empty --checkpoint"
        )
    if order is not None and (parted := _parted(saved["order"], order)):
        raise UsageError(
            f"the checkpoint is of another order of the samples: {parted}; give the data, the seed"
            " and the sampler that it was made with, or an empty --checkpoint"
        )
    if kind != "sharded" and len(saved["ranks"]) != world:
        raise UsageError(
            f"the checkpoint is of {len(saved['ranks'])} ranks and this world has {world}: a feed"
            " without ids cannot be divided anew; go on with as many as before"
        )


def _trained(state: State) -> dict[int, Ranges]:
    return {int(epoch): Ranges.from_json(pairs) for epoch, pairs in state["trained"].items()}


def _parted(before: State, now: State) -> str:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{n} was {before.get(n)!r} and is {now.get(n)!r}" for n in names)
