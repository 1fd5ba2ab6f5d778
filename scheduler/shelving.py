"""What a batch does whose labels may lie in a store: be looked up, be sent to teachers, or wait.

A label counts only for the model that made it, so nothing is looked up before it is known which
model that is. The coordinator says so, or the first answer of a teacher. Where no teacher answers
at all, it is the model that the store has seen at work last: a run with all teachers off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Teachers are given so long to answer, before the store alone says which model it is.
OFFLINE_AFTER_S = 2.0
#: Behind the first batch that was sent to learn of which model the labels are, others wait so long.
FIRST_ANSWER_S = 5.0

Step = Literal["look", "recall", "ask", "wait"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known when it is a batch's turn.

    Attributes:
        known: the model is, by teachers or coordinator.
        mute: teachers answer, and do not say which model it is.
        remembered: the store remembers a model, and nothing says that it is another one now.
        usable: teachers that can be sent to.
        asked: a batch was sent to learn of the model, and has not been answered.
        waited_s: how long the batch has waited for its turn.
    """

    known: bool
    mute: bool
    remembered: bool
    usable: int
    asked: bool
    waited_s: float


def step(now: Standing) -> Step:
    """Look it up; the same, by the remembered model; send it to teachers; or wait."""
    if now.known:
        return "look"
    if now.mute:
        return "ask"
    if now.usable:
        return "wait" if now.asked and now.waited_s < FIRST_ANSWER_S else "ask"
    if now.waited_s < OFFLINE_AFTER_S:
        return "wait"
    return "recall" if now.remembered else "ask"
