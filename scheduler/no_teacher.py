"""Policies for missing teachers: no teacher is usable, or one of several services has none.

A policy decides about a student that waits while no teacher is usable:

* "wait": it waits, with or without a time limit; at the limit an error is raised.
* "fail": the same with a short wait, which covers a connection that is being made.
* "hard_only": after a short wait the batch at the head of the line is delivered without soft
  labels, and so is each later one as soon as it is needed. When a teacher is usable again, batches
  wait for labels again. If it leaves without having labelled anything, batches go at once again.

Only waiting counts: a student that evaluates for an hour after the last teacher left still gets the
full wait when it returns. A teacher that comes, or ends its rest, stops the clock; only labels
reset it. So a teacher that always fails does not restart the wait.

Labels of several services, an *ensemble*, are mixed by normalised weights. A batch is complete when
every member has labelled it. A member is missing when it has had no usable teacher for a while; a
slow one is waited for. With "wait" a missing member is waited for too. With "tolerate" the weights
of the others are scaled to a sum of 1, and each batch states their part of the original weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from math import fsum, inf
from typing import Literal

#: "wait": do nothing; "go_unlabelled": deliver the head of the line without soft labels;
#: "give_up": raise the error.
Action = Literal["wait", "go_unlabelled", "give_up"]

#: Default wait of `fail` and `hard_only` in seconds.
GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The user's choice.

    Attributes:
        name: see the module.
        after_s: seconds to wait before acting; None (only with "wait"): no limit.

    Raises:
        ValueError: an unknown name or an impossible wait.
    """

    name: Literal["wait", "hard_only", "fail"] = "wait"
    after_s: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ("wait", "hard_only", "fail"):
            raise ValueError(f"a policy is wait, hard_only or fail, not {self.name!r}")
        if self.after_s is None and self.name != "wait":
            raise ValueError(
                f"policy {self.name} needs a time to wait first, for example {GRACE_S:g} s"
            )
        if self.after_s is not None and not 0 <= self.after_s < inf:
            raise ValueError(f"a wait is at least 0 s, not {self.after_s}")


@dataclass(frozen=True, slots=True)
class NoTeacherWait:
    """State between two decisions.

    Attributes:
        alone_since: since when the student waits without any teacher; None: there is one.
        spent_s: seconds of earlier waits of this kind since the latest label.
        answers_before: number of used answers when the waiting began; None: it does not wait.
        answers_at_skip: number of used answers when a batch last went unlabelled; None: none did
            since the last answer.
    """

    alone_since: float | None = None
    spent_s: float = 0.0
    answers_before: int | None = None
    answers_at_skip: int | None = None


def decide(
    usable: int, waits: bool, answers: int, wait: NoTeacherWait, now: float, policy: Policy
) -> tuple[Action, NoTeacherWait]:
    """Decide about a student that may be waiting in vain.

    Args:
        usable: number of teachers that can get requests.
        waits: the student waits, and the head of the line lacks labels.
        answers: number of answers used so far.
        wait: the previous state.
        now: seconds of a clock that does not go back.
        policy: the user's choice, the same at each call.
    """
    if wait.answers_at_skip is not None and answers > wait.answers_at_skip:
        wait = replace(wait, answers_at_skip=None)
    if not waits or (wait.answers_before is not None and answers > wait.answers_before):
        wait = NoTeacherWait(answers_at_skip=wait.answers_at_skip)
    if not waits:
        return "wait", wait
    if usable:
        if wait.alone_since is not None:
            spent_s = wait.spent_s + now - wait.alone_since
            wait = replace(wait, alone_since=None, spent_s=spent_s)
        return "wait", wait
    since = now if wait.alone_since is None else wait.alone_since
    before = answers if wait.answers_before is None else wait.answers_before
    wait = replace(wait, alone_since=since, answers_before=before)
    at_once = policy.name == "hard_only" and wait.answers_at_skip is not None
    spent_s = wait.spent_s + now - since
    if not at_once and (policy.after_s is None or spent_s < policy.after_s):
        return "wait", wait
    if policy.name == "hard_only":
        return "go_unlabelled", replace(wait, answers_at_skip=answers)
    return "give_up", wait


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The services of an ensemble, and the policy for missing ones.

    Attributes:
        weights: of each service (> 0), as the user gave them.
        missing: what to do if one is missing: "wait" or "tolerate".
        after_s: seconds without a usable teacher after which a service is missing.
        shares: the weights, scaled to a sum of 1.

    Raises:
        ValueError: no service, a weight that is not positive and finite, a bound out of range.
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
    """How the labels of one batch are mixed.

    Attributes:
        shares: share of each service that takes part; their sum is 1.
        weight: part of the ensemble that takes part; 1 if no service is missing.
    """

    shares: Mapping[str, float]
    weight: float


def mixture(
    ensemble: Ensemble, labelled: Set[str], alone_since: Mapping[str, float], now: float
) -> Mixture | None:
    """Return the mixture of a batch now; None: it waits.

    Args:
        ensemble: the services.
        labelled: services that have labelled the batch.
        alone_since: since when each service has had no usable teacher; services with one are not
            in it.
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
