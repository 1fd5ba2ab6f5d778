"""What is done about labels that nobody gives: no teacher is usable, or one of several services.

A student that waits while no teacher is usable is told so by the stated policy:

* "wait": it waits, for so long or for ever, and is then told so by an error.
* "fail": the same with a short wait, which covers a connection that is just being made.
* "hard_only": after a short wait the batch at the head of the line goes to it without soft labels,
  and so does each later one as soon as it is waited for. When a teacher is usable again batches
  wait for labels again. If that one goes too, without having labelled anything, they go at once.

Only waiting counts: a student that evaluates for an hour, while the last teacher goes, still has
its whole patience when it comes back. A teacher that comes, or comes back from a rest, stops the
clock; only labels set it back. So one that never does anything but fail is not waited for longer
than was said.

Labels of several services, an *ensemble*, are mixed by normalised weights. A batch is complete when
every member has labelled it. A member counts as missing when it has had no usable teacher for a
while; one that is merely slow is waited for. By the policy "wait" a missing member is waited for
too; by "tolerate" the others' weights are scaled up to 1 in its place, and how much weight there
was is told of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from math import fsum, inf
from typing import Literal

#: What to do now: nothing; let the head of the line go without soft labels; raise the error.
Action = Literal["wait", "go_unlabelled", "give_up"]

#: What `fail` and `hard_only` wait before they act, unless told otherwise.
GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user wants to happen.

    Attributes:
        name: see above.
        after_s: the wait before anything is done, in seconds; None, for "wait" alone: for ever.

    Raises:
        ValueError: a name that is none, or a wait that is none.
    """

    name: Literal["wait", "hard_only", "fail"] = "wait"
    after_s: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ("wait", "hard_only", "fail"):
            raise ValueError(f"a policy is wait, hard_only or fail, not {self.name!r}")
        if self.after_s is None and self.name != "wait":
            raise ValueError(f"{self.name} needs a time after which it acts, as {GRACE_S:g} s")
        if self.after_s is not None and not 0 <= self.after_s < inf:
            raise ValueError(f"a wait is at least 0 s, not {self.after_s}")


@dataclass(frozen=True, slots=True)
class NoTeacherWait:
    """What one look leaves to the next.

    Attributes:
        alone_since: since when the student waits without any teacher; None: there is one.
        spent_s: for how long it did so before, since the last label.
        heard: labels used when this began; None: the student does not wait in vain.
        answers: those used when a batch last went unlabelled; None: none went since an answer.
    """

    alone_since: float | None = None
    spent_s: float = 0.0
    heard: int | None = None
    answers: int | None = None


def decide(
    usable: int, waits: bool, answers: int, patience: NoTeacherWait, now: float, policy: Policy
) -> tuple[Action, NoTeacherWait]:
    """Look at a student that may be waiting in vain.

    Args:
        usable: teachers that can be sent to.
        waits: the student waits, and the head of the line lacks labels.
        answers: how many were used so far, of the teachers that there were.
        patience: what the last look left.
        now: seconds of a clock that does not go back.
        policy: the user's, the same at each call.
    """
    if patience.answers is not None and answers > patience.answers:
        patience = replace(patience, answers=None)
    if not waits or (patience.heard is not None and answers > patience.heard):
        patience = NoTeacherWait(answers=patience.answers)
    if not waits:
        return "wait", patience
    if usable:
        if patience.alone_since is not None:
            spent_s = patience.spent_s + now - patience.alone_since
            patience = replace(patience, alone_since=None, spent_s=spent_s)
        return "wait", patience
    since = now if patience.alone_since is None else patience.alone_since
    heard = answers if patience.heard is None else patience.heard
    patience = replace(patience, alone_since=since, heard=heard)
    at_once = policy.name == "hard_only" and patience.answers is not None
    spent_s = patience.spent_s + now - since
    if not at_once and (policy.after_s is None or spent_s < policy.after_s):
        return "wait", patience
    if policy.name == "hard_only":
        return "go_unlabelled", replace(patience, answers=answers)
    return "give_up", patience


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The members and the policy.

    Attributes:
        weights: of each service (> 0), as the user gave them.
        missing: what to do without one: "wait" or "tolerate".
        after_s: seconds without a usable teacher after which a member is missing.
        shares: the weights, scaled to a sum of 1.

    Raises:
        ValueError: no member, a weight that is not positive and finite, a bound that makes no
            sense.
    """

    weights: Mapping[str, float]
    missing: Literal["wait", "tolerate"] = "wait"
    after_s: float = 5.0
    shares: Mapping[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.weights or not all(0 < weight < inf for weight in self.weights.values()):
            raise ValueError(
                f"an ensemble needs services with weights above 0, not {dict(self.weights)}"
            )
        if self.missing not in ("wait", "tolerate"):
            raise ValueError(f"a missing member is waited for or tolerated, not {self.missing!r}")
        if not 0 <= self.after_s < inf:
            raise ValueError(f"a member is missing after 0 s or more, not {self.after_s} s")
        largest = max(self.weights.values())  # as the unit, so that no sum overflows
        total = fsum(weight / largest for weight in self.weights.values())
        shares = {name: weight / largest / total for name, weight in self.weights.items()}
        object.__setattr__(self, "shares", shares)


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the labels of one batch are made.

    Attributes:
        shares: of each member that takes part; their sum is 1.
        weight: how much of the ensemble that is, 1 when nobody is missing.
    """

    shares: Mapping[str, float]
    weight: float


def mixture(
    ensemble: Ensemble, labelled: Set[str], alone_since: Mapping[str, float], now: float
) -> Mixture | None:
    """What a batch is mixed of now; None: it waits.

    Args:
        ensemble: the members.
        labelled: the members that have labelled the batch.
        alone_since: since when each member without a usable teacher has been so.
        now: seconds of the same clock.
    """
    there = [name for name in ensemble.shares if name in labelled]
    if len(there) == len(ensemble.shares):
        return Mixture(ensemble.shares, 1.0)
    missing = {name for name, since in alone_since.items() if now - since >= ensemble.after_s}
    if ensemble.missing == "wait" or not there or ensemble.shares.keys() - labelled - missing:
        return None
    weight = fsum(ensemble.shares[name] for name in there)
    return Mixture({name: ensemble.shares[name] / weight for name in there}, weight)
