"""Grouped settings of a reader: limits, timeouts, TLS, trace, canaries, ensembles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

from ..runtime.errors import UsageError
from ..scheduler.canaries import CanaryConfig
from ..scheduler.no_teacher import GRACE_S, Ensemble
from .setting_checks import check_fields, number, text, texts

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of batches and requests in flight.

    Attributes:
        buffer_bytes: hard limit of the bytes of batches between the source and the training loop,
            labelled or not; None: 4 GiB, or `upper_bytes` if that is more. A single batch may
            exceed it.
        window: initial requests in flight per teacher.
        window_max: maximum requests in flight per teacher. The number grows up to this limit while
            a teacher labels more rows per second with more requests. If `window_max` equals
            `window`, the number is fixed.
        request_rows: maximum rows of a request. Batches are split and joined for requests, and
            delivered whole. None: a request is one batch; "auto": for each teacher, the smallest
            number of rows at which it labels the most rows per second.

    Raises:
        UsageError: a value of a wrong type.
    """

    buffer_bytes: int | None = None
    window: int = 2
    window_max: int = 8
    request_rows: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a reader, in seconds.

    Attributes:
        request_s: time that a request may take; after that its teacher counts as lost.
        no_teacher_s: time without a teacher after which `no_teacher="hard_only"` and "fail" act.
        wait_s: time without a teacher after which `no_teacher="wait"` raises `NoTeacherAvailable`;
            None: never. The log says what the reader waits for.

    Raises:
        UsageError: a value of a wrong type.
    """

    request_s: float = 120.0
    no_teacher_s: float = GRACE_S
    wait_s: float | None = 600.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class TLS:
    """Certificates for connections to teachers and managers; any of the files enables TLS.

    Attributes:
        ca: file with the CA certificates that verify teachers and managers.
        certificate: file with the reader's own certificate, for mutual TLS.
        key: file with the private key of `certificate`.
        server_name: expected name in the certificates of teachers and managers; empty: the host of
            their address.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A file for a timeline of work and waiting, to open in Perfetto.

    Attributes:
        path: path of the file.
        max_bytes: limit of the file and its older part together (`run.json`, `run.older.json`).

    Raises:
        UsageError: `max_bytes` is of a wrong type.
    """

    path: str | Path
    max_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_LIMITS: Final = Limits()
DEFAULT_TIMEOUTS: Final = Timeouts()

#: Former parameters of `DistilReader`, and their replacements.
FORMER_PARAMETERS: Final = {
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


def explain_former_parameters(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate `DistilReader.__init__` to name the replacement of a former parameter."""

    @wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if former := next((name for name in kwargs if name in FORMER_PARAMETERS), None):
            replacement = FORMER_PARAMETERS[former]
            raise TypeError(
                f"DistilReader has no {former}=: write {replacement}; the class is in"
                " edl.distill_reader"
            )
        return function(*args, **kwargs)

    return wrapper


@dataclass(frozen=True, slots=True)
class CanaryPolicy(CanaryConfig):
    """How often, and with which tolerance, two teachers' labels of the same batches are compared.

    Attributes:
        share: share of the requests that a second teacher labels, too. A teacher that joins is
            compared with another one even if `share` is 0.
        same_numerics: tolerated difference between teachers with one numerics_id, relative to the
            greatest absolute value of both label arrays.
        other_numerics: the same between other teachers, and if a numerics_id is unknown.

    Raises:
        UsageError: a wrong value.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        if not (0 <= self.share <= 1 and 0 <= self.same_numerics <= self.other_numerics):
            raise UsageError(
                "canaries need 0 <= share <= 1 and 0 <= same_numerics <= other_numerics, not"
                f" {self}"
            )


DEFAULT_CANARIES: Final = CanaryPolicy()

#: Name of the label with the weights of the ensemble.
WEIGHTS = "ensemble_weights"


@dataclass(frozen=True, slots=True)
class EnsemblePolicy:
    """How labels of several services are averaged.

    Attributes:
        missing: "wait" for the labels of a service without teachers, or "tolerate" that they are
            missing: the other weights are then scaled to a sum of 1.
        missing_after_s: seconds without teachers after which a service counts as missing.
        with_weights: add a last soft label `ensemble_weights` to each batch, with the weights that
            were used: float32 [rows, services].

    Raises:
        UsageError: a wrong value.
    """

    missing: Literal["wait", "tolerate"] = "wait"
    missing_after_s: float = 5.0
    with_weights: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        self.core_settings({"service": 1.0})

    def core_settings(self, weights: Mapping[str, float]) -> Ensemble:
        """Convert to the scheduler's settings, with these weights by service.

        Raises:
            UsageError: a wrong weight or policy.
        """
        try:
            return Ensemble(weights, self.missing, self.missing_after_s)
        except ValueError as error:
            raise UsageError(f"invalid ensemble: {error}") from None


@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """The services of an ensemble.

    Attributes:
        weights: (service, weight) pairs.
        teachers: (service, addresses) pairs; empty: the coordinator assigns teachers.
        policy: how their labels are averaged.

    Raises:
        UsageError: bad weights, or services without teachers.
    """

    weights: tuple[tuple[str, float], ...]
    teachers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    policy: EnsemblePolicy = EnsemblePolicy()

    def __post_init__(self) -> None:
        self.core_settings()
        if self.teachers and dict(self.teachers).keys() != dict(self.weights).keys():
            raise UsageError(
                f"services are {list(dict(self.weights))}, teachers are given for"
                f" {list(dict(self.teachers))}: name teachers for each service"
            )

    def core_settings(self) -> Ensemble:
        """Convert to the scheduler's settings."""
        return self.policy.core_settings(dict(self.weights))

    def addresses(self, service: str) -> tuple[str, ...]:
        """Return the addresses of a service's teachers; empty: the coordinator assigns them."""
        return dict(self.teachers).get(service, ())


def services_of(
    service: str | Mapping[str, float],
    teachers: Sequence[str] | Mapping[str, Sequence[str]],
    policy: EnsemblePolicy | None,
) -> tuple[str, tuple[str, ...], EnsembleConfig | None]:
    """Check the user's services and teachers.

    Returns:
        A name for all services ("a+b"), the addresses of all teachers, and the ensemble (None if
        `service` is a name).

    Raises:
        UsageError: values of a wrong type, or that contradict each other.
    """
    if isinstance(service, str):
        if isinstance(teachers, Mapping):
            listed = [
                address
                for name, addresses in teachers.items()
                for address in texts(f"teachers of {name!r}", addresses, "host:port")
            ]
            raise UsageError(f"with one service, teachers is a list, as in teachers={listed}")
        if policy is not None:
            raise UsageError(
                "ensemble= is for several services, as in service={'a': 0.7, 'b': 0.3}; this reader"
                f" has one service, {service!r}"
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
            "if service is a dict, name the teachers of each service, as in"
            f" teachers={ {name: ['host:port'] for name in service} }"
        )
    addresses_by_service = tuple(
        (name, texts(f"teachers of {name!r}", addresses, "host:port"))
        for name, addresses in by_service.items()
    )
    weights = tuple(
        (text("the name of a service", name), number(f"the weight of {name!r}", weight))
        for name, weight in service.items()
    )
    ensemble = EnsembleConfig(weights, addresses_by_service, policy or EnsemblePolicy())
    all_addresses = tuple(address for _, addresses in addresses_by_service for address in addresses)
    return "+".join(service), all_addresses, ensemble
