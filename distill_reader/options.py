"""Settings of a reader that come in groups: what is rarely changed, canaries, ensembles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar

from ..errors import UsageError
from ..scheduler.canaries import OTHER_NUMERICS, SAME_NUMERICS, CanaryConfig
from ..scheduler.no_teacher import GRACE_S, Ensemble
from .checking import number, settle, text, texts

DEFAULT_TRACE_BYTES: Final = 128 << 20

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a reader may have on its way, and how it is cut into requests.

    Attributes:
        buffer_bytes: hard limit of the bytes of batches that are pulled and not yet taken, labelled
            or not; None: 4 GiB, or `upper_bytes` if that is more. One batch may exceed it.
        window: requests in flight per teacher at first.
        window_max: the most that a teacher is given which is not kept busy with fewer; equal to
            `window`: it stays at that.
        request_rows: rows that a teacher gets at most in one request: the student's batches are cut
            and joined on the way, and come back as they were. None: a request is one batch; "auto"
            finds for each teacher the smallest size that it is fastest with.

    Raises:
        UsageError: a value of a wrong type.
    """

    buffer_bytes: int | None = None
    window: int = 2
    window_max: int = 8
    request_rows: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a reader waits, in seconds.

    Attributes:
        request_s: after that an unanswered request counts as a lost teacher.
        no_teacher_s: until `no_teacher="hard_only"` and "fail" act.
        wait_s: until `no_teacher="wait"` raises `NoTeacherAvailable`; None waits for ever. The log
            says what it waits for.

    Raises:
        UsageError: a value of a wrong type.
    """

    request_s: float = 120.0
    no_teacher_s: float = GRACE_S
    wait_s: float | None = 600.0

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, slots=True)
class TLS:
    """Files by which a reader and its teachers and managers know each other.

    Attributes:
        ca: certificates that sign those of teachers and managers; makes connections use TLS.
        certificate: the reader's own, where they ask for one.
        key: of `certificate`.
        server_name: what their certificates are made out to; empty: the host that is dialled.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A file for a timeline that opens in Perfetto: who worked and who waited when.

    Attributes:
        path: of the file.
        max_bytes: of it and its older half, PATH.older.json, together.
    """

    path: str | Path
    max_bytes: int = DEFAULT_TRACE_BYTES


DEFAULT_LIMITS: Final = Limits()
DEFAULT_TIMEOUTS: Final = Timeouts()

#: Parameters that a reader had before they were grouped, and what to write now.
MOVED: Final = {
    "buffer_bytes": "limits=Limits(buffer_bytes=...)",
    "window": "limits=Limits(window=...)",
    "window_max": "limits=Limits(window_max=...)",
    "teacher_batch_size": "limits=Limits(request_rows=...)",
    "request_timeout_s": "timeouts=Timeouts(request_s=...)",
    "no_teacher_grace_s": "timeouts=Timeouts(no_teacher_s=...)",
    "wait_timeout_s": "timeouts=Timeouts(wait_s=...)",
    "tls_ca": "tls=TLS(ca=...)",
    "tls_cert": "tls=TLS(certificate=...)",
    "tls_key": "tls=TLS(key=...)",
    "tls_server_name": "tls=TLS(server_name=...)",
    "trace_max_bytes": "trace=Trace(path, max_bytes=...)",
}


def naming_moved(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a function that is called with a former parameter say what to write now."""

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if moved := next((name for name in kwargs if name in MOVED), None):
            raise TypeError(
                f"DistilReader has no {moved}=: write {MOVED[moved]}, from edl.distill_reader"
            )
        return function(*args, **kwargs)

    return called


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """How answers of teachers are compared with those of others.

    Attributes:
        share: part of the requests that two teachers label, besides the first one of each teacher
            that joins; 0: only that one.
        same_numerics: how far labels of two teachers of one numerics_id may lie apart, as a part of
            the greatest one.
        other_numerics: the same of others, and where the numerics_id is not known.

    Raises:
        UsageError: a number that makes no sense.
    """

    share: float = 0.002
    same_numerics: float = SAME_NUMERICS
    other_numerics: float = OTHER_NUMERICS

    def __post_init__(self) -> None:
        try:
            self.rule()
        except ValueError:
            raise UsageError(
                "canaries need 0 <= share <= 1 and 0 <= same_numerics <= other_numerics, not"
                f" {self}"
            ) from None

    def rule(self) -> CanaryConfig:
        """The scheduler's view of it."""
        return CanaryConfig(self.share, self.same_numerics, self.other_numerics)


DEFAULT_CANARIES: Final = CanaryPolicy()


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
