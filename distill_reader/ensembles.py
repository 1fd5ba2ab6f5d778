"""Several services as one: what the user says of them, and what one of them needs to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from ..errors import UsageError
from ..scheduler.no_teacher import Ensemble
from .checking import number, settle, text, texts

#: Under this name the weights come with each batch, where that is wanted.
WEIGHTS = "ensemble_weights"


@dataclass(frozen=True, slots=True)
class EnsemblePolicy:
    """How labels of several services are mixed.

    Attributes:
        missing: without any teacher of a service its labels are waited for ("wait"); or the others'
            weights are scaled up to 1 in their place ("tolerate").
        missing_after_s: seconds without any teacher after which a service is missing.
        with_weights: the weights used come with each batch, as one more soft label behind the
            others, `ensemble_weights`: float32 [rows, services].

    Raises:
        UsageError: a value that is none of these.
    """

    missing: Literal["wait", "tolerate"] = "wait"
    missing_after_s: float = 5.0
    with_weights: bool = False

    def __post_init__(self) -> None:
        settle(self)
        self.rule({"service": 1.0})

    def rule(self, weights: Mapping[str, float]) -> Ensemble:
        """The scheduler's view of services with these weights; raises UsageError for bad ones."""
        try:
            return Ensemble(weights, self.missing, self.missing_after_s)
        except ValueError as error:
            raise UsageError(f"labels cannot be mixed so: {error}") from None


@dataclass(frozen=True, slots=True)
class Mixing:
    """The services whose labels become one.

    Attributes:
        weights: of each service.
        teachers: addresses of each, where no coordinator is asked.
        policy: how they are mixed.

    Raises:
        UsageError: they cannot be mixed.
    """

    weights: tuple[tuple[str, float], ...]
    teachers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    policy: EnsemblePolicy = EnsemblePolicy()

    def __post_init__(self) -> None:
        self.rule()
        if self.teachers and dict(self.teachers).keys() != dict(self.weights).keys():
            raise UsageError(
                f"services are {list(dict(self.weights))}, teachers are given for"
                f" {list(dict(self.teachers))}: name some for each"
            )

    def rule(self) -> Ensemble:
        """The scheduler's view of it."""
        return self.policy.rule(dict(self.weights))

    def addresses(self, service: str) -> tuple[str, ...]:
        """The teachers of one service that were named."""
        return dict(self.teachers).get(service, ())

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self | None:
        if value is None:
            return None
        return cls(
            tuple((name, weight) for name, weight in value["weights"]),
            tuple((name, tuple(addresses)) for name, addresses in value["teachers"]),
            EnsemblePolicy(**value["policy"]),
        )


def services_of(
    service: str | Mapping[str, float],
    teachers: Sequence[str] | Mapping[str, Sequence[str]],
    policy: EnsemblePolicy | None,
) -> tuple[str, tuple[str, ...], Mixing | None]:
    """What the user gave: a name for the whole, all teachers, and how several are mixed.

    Raises:
        UsageError: it does not go together.
    """
    if isinstance(service, str):
        if isinstance(teachers, Mapping):
            raise UsageError(f"one service has a list of teachers, as in {[*teachers.values()]}")
        if policy is not None:
            raise UsageError(
                "ensemble= is for several services, as in service={'a': 0.7, 'b': 0.3}; there is"
                f" one, {service!r}"
            )
        return service, texts("teachers", teachers, "host:port"), None
    if not isinstance(service, Mapping):
        raise UsageError(f"service is a name, or a dict from names to weights, not {service!r}")
    if not isinstance(policy, EnsemblePolicy | None):
        raise UsageError(f"ensemble is an EnsemblePolicy, not {policy!r}")
    by_service: Mapping[str, Sequence[str]] = {}
    if isinstance(teachers, Mapping):
        by_service = teachers
    elif teachers:
        raise UsageError(
            "several services need to be told whose each teacher is, as in"
            f" teachers={ {name: ['host:port'] for name in service} }"
        )
    named = tuple(
        (name, texts(f"teachers of {name!r}", of, "host:port")) for name, of in by_service.items()
    )
    weights = tuple(
        (text("the name of a service", name), number(f"the weight of {name!r}", weight))
        for name, weight in service.items()
    )
    mixing = Mixing(weights, named, policy or EnsemblePolicy())
    return "+".join(service), tuple(one for _, of in named for one in of), mixing
