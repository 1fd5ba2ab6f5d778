"""Lies that only a comparison can find: until when they may pass, and who is called a liar."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...proto.arena import Array
from .faults import BY_NAME
from .trace import Done, RunTrace, Seen

#: Figures are so much behind, and the batch that the loop is working on, too.
LAG_S = 0.6
#: Labels that lay in the buffer when a lie ended that nobody has found are taken after so long.
DRAINED_S = 5.0


def lies(trace: RunTrace) -> Iterator[Done]:
    """The faults of a run that deceive."""
    return (one for one in trace.faults if BY_NAME[one.fault.kind].deceives and not one.skipped)


def may_be_lies(trace: RunTrace, seen: Seen, times: Array) -> Array:
    """Which samples, by when they came, a student may have been deceived about.

    From when a teacher begins to lie until the student's reader has found it out; where it has not,
    until the last lie must have been taken.
    """
    mask = np.zeros(len(times), bool)
    for lie in lies(trace):
        end = np.inf if lie.healed_s is None else lie.healed_s + DRAINED_S
        found = (
            one.at_s + LAG_S
            for one in seen.figures
            if one.at_s >= lie.at_s and lie.fault.target in one.liars
        )
        mask |= (times >= lie.at_s) & (times < min(end, next(found, np.inf)))
    return mask


def wrongly_convicted(trace: RunTrace, seen: Seen) -> list[str]:
    """Teachers that a student's reader has called liars, and that were honest until then."""
    began = dict.fromkeys({name for one in seen.figures for name in one.liars}, np.inf)
    for lie in lies(trace):
        began[lie.fault.target] = min(began.get(lie.fault.target, np.inf), lie.at_s)
    return sorted(
        f"{name} at {one.at_s:.1f} s"
        for name, since in began.items()
        for one in [next((f for f in seen.figures if name in f.liars), None)]
        if one is not None and one.at_s < since
    )
