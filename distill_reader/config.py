"""What a reader is told once: validated in the trainer, carried to the engine as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ..errors import UsageError
from ..proto.dialects import check_dialled
from ..proto.security import ClientSecurity, TlsFiles
from .label_forms import AS_GIVEN, LabelForms

#: A field of a batch: its place in a tuple or list, its key in a dict.
FieldKey = int | str
Feeds = Sequence[FieldKey] | Mapping[str, FieldKey]

DEFAULT_UPPER_BYTES = 256 << 20
_MAX_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Settings of one reader.

    Attributes:
        service: name of the set of interchangeable teachers to ask.
        coordinator: Redis URL of the mesh, or None when `teachers` are named.
        teachers: addresses `host:port` to use without a coordinator.
        feeds: pairs of (model input or None, field of the batch); empty: fields in their order.
        fetches: model outputs to ask for; empty: all of them.
        labels: in which form each output is asked for.
        upper_bytes: `ut` of the paper's Algorithm 1; above it no new batch is pulled.
        lower_bytes: `lt`; below it pulling goes on.
        job: name of the training that this reader belongs to.
        rank: number of this student within its job.
        incarnation: grows with each start of a reader; supersedes older ones of the same rank.
        window: requests in flight per teacher; two hide the transfer behind the computing.
        teachers_min: never ask for fewer.
        teachers_max: never ask for more.
        priority: of its job among those of the service; the greater goes first.
        request_timeout_s: a request that takes longer counts as a lost teacher.
        wait_timeout_s: with no teacher for so long, `NoTeacherAvailable` is raised; None: never.
        shared_memory: teachers on this host read batches where they lie; False: all are sent.
        security: how the reader proves who it is to teachers and managers; None: not at all.
        metrics_listen: "PORT" or "HOST:PORT" of the engine's Prometheus metrics; empty: none.
        insecure: let others read the metrics where `metrics_listen` is no loopback address.
    """

    service: str
    coordinator: str | None = None
    teachers: tuple[str, ...] = ()
    feeds: tuple[tuple[str | None, FieldKey], ...] = ()
    fetches: tuple[str, ...] = ()
    labels: LabelForms = AS_GIVEN
    upper_bytes: int = DEFAULT_UPPER_BYTES
    lower_bytes: int = DEFAULT_UPPER_BYTES // 2
    job: str = "job"
    rank: int = 0
    incarnation: int = field(default_factory=lambda: new_incarnation())
    window: int = 2
    teachers_min: int = 1
    teachers_max: int = 64
    priority: int = 0
    request_timeout_s: float = 120.0
    wait_timeout_s: float | None = 600.0
    shared_memory: bool = True
    security: ClientSecurity | None = None
    metrics_listen: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        if not self.service:
            raise UsageError("a reader needs the name of a service, as in service='resnet101'")
        if bool(self.coordinator) == bool(self.teachers):
            raise UsageError(
                "a reader needs either coordinator='redis://host:6379' or teachers=['host:port']"
            )
        for address in self.teachers:
            check_dialled("", address)
        if not 0 <= self.lower_bytes < self.upper_bytes:
            raise UsageError(
                f"thresholds need 0 <= lower_bytes < upper_bytes, not {self.lower_bytes} and"
                f" {self.upper_bytes}"
            )
        if not 1 <= self.teachers_min <= self.teachers_max:
            raise UsageError(
                f"need 1 <= teachers_min <= teachers_max, not {self.teachers_min} and"
                f" {self.teachers_max}"
            )
        if not -_MAX_PRIORITY <= self.priority <= _MAX_PRIORITY:
            raise UsageError(
                f"priority is a number from {-_MAX_PRIORITY} to {_MAX_PRIORITY}, not"
                f" {self.priority}"
            )
        if self.window < 1 or self.request_timeout_s <= 0:
            raise UsageError("window must be at least 1 and request_timeout_s above 0")
        if "/" in self.job or self.rank < 0:
            raise UsageError(f"job {self.job!r} must not hold '/', rank {self.rank} not below 0")
        self.labels.check_fetched(self.fetches)

    @property
    def student_id(self) -> str:
        """`job/rank`, the student's name in the mesh."""
        return f"{self.job}/{self.rank}"

    def to_json(self) -> dict[str, Any]:
        security = None if self.security is None else self.security.to_json()
        return {**asdict(self), "security": security}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **value,
                "teachers": tuple(value["teachers"]),
                "feeds": tuple((name, key) for name, key in value["feeds"]),
                "fetches": tuple(value["fetches"]),
                "labels": LabelForms.from_json(value["labels"]),
                "security": ClientSecurity.from_json(told) if (told := value["security"]) else None,
            }
        )


def new_incarnation(above: int = 0) -> int:
    """One that is greater than any before it, `above` among them, whatever the clock does."""
    return max(time.time_ns() // 1000, above + 1)


def feed_pairs(feeds: Feeds | None) -> tuple[tuple[str | None, FieldKey], ...]:
    """The user's `feeds` as pairs; raises UsageError where it is neither a list nor a dict."""
    if feeds is None:
        return ()
    if isinstance(feeds, str):
        raise UsageError(f"feeds is a list of fields, as in feeds=[{feeds!r}]")
    if isinstance(feeds, Mapping):
        return tuple(feeds.items())
    return tuple((None, key) for key in feeds)


def security_of(
    tls_ca: str | Path | None,
    tls_cert: str | Path | None,
    tls_key: str | Path | None,
    token_file: str | Path | None,
    *,
    server_name: str = "",
    insecure: bool = False,
) -> ClientSecurity | None:
    """What the user gave, as absolute paths; None where that is nothing.

    Raises:
        UsageError: a file does not exist, or files do not go together.
    """
    ca, cert, key, token = map(_existing, (tls_ca, tls_cert, tls_key, token_file))
    tls = TlsFiles(cert, key, ca)
    if not tls.paths():
        if server_name:
            raise UsageError("tls_server_name is given without TLS: name tls_ca as well")
        if token is None:
            return None
    return ClientSecurity(tls if tls.paths() else None, token, server_name, insecure)


def _existing(path: str | Path | None) -> Path | None:
    if path is None:
        return None
    if not Path(path).is_file():
        raise UsageError(f"there is no file {str(path)!r}, which the reader is to use")
    return Path(path).absolute()
