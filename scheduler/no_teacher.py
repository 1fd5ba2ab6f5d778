"""Policies for missing teachers: no teacher is usable, or one of several services has none.

A policy decides about a student that waits while no teacher is usable:

* "wait": it waits, with or without a time limit; at the limit an error is raised.
* "fail": an error is raised after a short wait. The wait covers a connection that is being made.
* "hard_only": after a short wait the student's next batch is delivered without soft labels, and so
  is each later batch as soon as the student needs it. Once a teacher is usable again, batches wait
  for labels. If this teacher leaves before it has labelled anything, batches are delivered at once
  without soft labels, as before.

Only waiting counts: a student that evaluates for an hour after the last teacher left still waits
its full time when it asks for a batch again. A teacher that joins, or is usable again after a
failure, stops the clock. Only used labels, or the end of the student's wait, reset it. So a teacher
that always fails does not restart the wait.

Labels of several services, an *ensemble*, are mixed by normalised weights. A batch is complete when
every service has labelled it. A service is missing when it has had no usable teacher for a while;
batches wait for slow services. With `missing="wait"` they wait for missing services too. With
"tolerate" the weights of the other services are scaled to a sum of 1, and each batch states their
share of the original weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from math import fsum, inf
from typing import Literal

#: "wait": do nothing; "go_unlabelled": deliver the student's next batch without soft labels;
#: "give_up": raise an error.
Action = Literal["wait", "go_unlabelled", "give_up"]

#: Default wait of `fail` and `hard_only` in seconds.
GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The user's choice of a policy.

    Attributes:
        name: see the module.
        after_s: seconds that the student waits first; None (only with "wait"): no limit.

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
            raise ValueError(f"a wait is finite and at least 0 s, not {self.after_s}")


@dataclass(frozen=True, slots=True)
class NoTeacherWait:
    """State between two decisions.

    Attributes:
        alone_since: since when the student waits without a usable teacher; None: it does not.
        spent_s: seconds of earlier such waits since the clock was reset; see the module.
        answers_before: number of used answers when the first of these waits began; None: there was
            no such wait.
        answers_at_skip: number of used answers when the latest batch went without labels; None:
            since the latest used answer, no batch went without labels.
    """

    alone_since: float | None = None
    spent_s: float = 0.0
    answers_before: int | None = None
    answers_at_skip: int | None = None


def decide(
    usable: int, waits: bool, answers: int, wait: NoTeacherWait, now: float, policy: Policy
) -> tuple[Action, NoTeacherWait]:
    """Decide whether the student waits on, goes on without labels, or gives up.

    Args:
        usable: number of teachers that can get requests.
        waits: the student waits, and its next batch lacks labels.
        answers: number of answers used so far.
        wait: the previous state.
        now: seconds of a clock that does not go back.
        policy: the user's choice, the same at each call.

    Returns:
        What to do now, and the state for the next decision.
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
        weights: weight of each service (> 0), as the user stated them.
        missing: what to do if a service is missing: "wait" or "tolerate".
        after_s: seconds without a usable teacher after which a service is missing.
        shares: the weights, scaled to a sum of 1.

    Raises:
        ValueError: there is no service, a weight is not positive and finite, or another value is
            out of range.
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
            raise ValueError(f"missing must be wait or tolerate, not {self.missing!r}")
        if not 0 <= self.after_s < inf:
            raise ValueError(f"a service is missing after 0 s or more, not {self.after_s} s")
        largest = max(self.weights.values())  # as the unit, so that no sum overflows
        total = fsum(weight / largest for weight in self.weights.values())
        shares = {name: weight / largest / total for name, weight in self.weights.items()}
        object.__setattr__(self, "shares", shares)


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the labels of one batch are mixed.

    Attributes:
        shares: share of each service that takes part; their sum is 1.
        weight: sum of these services' shares in the ensemble; 1 if no service is missing.
    """

    shares: Mapping[str, float]
    weight: float


def mixture(
    ensemble: Ensemble, labelled: Set[str], alone_since: Mapping[str, float], now: float
) -> Mixture | None:
    """Return the mixture of a batch now; None: the batch waits for labels.

    Args:
        ensemble: the services.
        labelled: services that have labelled the batch.
        alone_since: for each service without a usable teacher, since when it has none.
        now: seconds of the clock of `alone_since`.
    """
    present = [name for name in ensemble.shares if name in labelled]
    if len(present) == len(ensemble.shares):
        return Mixture(ensemble.shares, 1.0)
    missing = {name for name, since in alone_since.items() if now - since >= ensemble.after_s}
    if ensemble.missing == "wait" or not present or ensemble.shares.keys() - labelled - missing:
        return None
    weight = fsum(ensemble.shares[name] for name in present)
    return Mixture({name: ensemble.shares[name] / weight for name in present}, weight)
