"""The settings of a reader: validated in the trainer, and sent to the engine as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..proto.protocols import check_address
from ..proto.security.credentials import ClientSecurity, TlsFiles
from ..runtime.errors import UsageError
from ..scheduler.no_teacher import Policy
from ..scheduler.students.shards import RankShard, Uneven
from .label_forms import NO_FORMS, LabelForms
from .options import (
    DEFAULT_CANARIES,
    DEFAULT_LIMITS,
    DEFAULT_TIMEOUTS,
    TLS,
    CanaryPolicy,
    EnsembleConfig,
    Limits,
    Timeouts,
    Trace,
)
from .setting_checks import check_fields, instance_of, path, text
from .store import LabelStore

#: A field of a batch: its index in a tuple or list, its key in a dict.
FieldKey = int | str
#: What to do while there is no teacher; see `DistilReader`.
OnNoTeacher = Literal["wait", "hard_only", "fail"]
Feeds = Sequence[FieldKey] | Mapping[str, FieldKey]

DEFAULT_UPPER_BYTES = 256 << 20
_DEFAULT_BUFFER_BYTES = 4 << 30
#: The job name of unnamed trainings; no profile is kept for them.
DEFAULT_JOB = "job"
#: Folder of the profiles of former runs.
DEFAULT_PROFILES = "~/.local/state/edl-dist/profiles"
#: Environment variables that torchrun and paddle.distributed.launch set for each process.
RANK_VARIABLES = ("RANK", "PADDLE_TRAINER_ID")
_MIN_TRACE_BYTES = 64 << 10
_MAX_PRIORITY = 1000
_LONGEST_REQUEST_S = 1e9


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Settings of one reader.

    Attributes:
        service: name of the teachers' service; "a+b" for an ensemble of the services a and b.
        coordinator: Redis URL of the mesh; None: the reader uses `teachers`.
        teachers: addresses `host:port` to use without a coordinator.
        feeds: (model input, field of the batch) pairs; an input None stands for the model input at
            the same position. Empty: see `DistilReader`.
        fetches: model outputs to request; empty: all.
        labels: requested form of each output.
        upper_bytes: threshold `ut` of the paper's Algorithm 1: above it no new batch is pulled.
        lower_bytes: threshold `lt`: below it pulling resumes.
        job: name of the training.
        profiles: absolute path of the folder of profiles; empty: none is kept.
        rank: rank of this student in its job.
        world_size: ranks among which the reader divides the source; 1: it does not.
        uneven: what to do with the last batches of an epoch if there are fewer of them than ranks;
            see `DistilReader`.
        seed: seed of the order of map-style sources.
        ordered: deliver batches in the order of the source; False: in the order of labelling.
        deterministic: use only teachers with one numerics_id, send whole batches, and keep the
            number of requests in flight fixed.
        limits: limits of batches and requests in flight.
        teachers_min: never ask for fewer teachers.
        teachers_max: never ask for more teachers.
        priority: priority of the job among the jobs that share a service; see `DistilReader`.
        no_teacher: what to do while there is no teacher; see `scheduler.no_teacher`.
        timeouts: timeouts of requests, and of waiting for teachers.
        ensemble: the services of an ensemble; None: the user named one service, without a weight.
        canaries: how labels of two teachers are compared; None: they are not compared.
        store: label store; None: labels are not stored.
        shared_memory: let teachers on this host read batches from shared memory.
        security: credentials for teachers and managers; None: none.
        metrics_listen: "PORT" or "HOST:PORT" of the engine's Prometheus metrics; empty: none.
        trace: the timeline's file, with an absolute path; None: no timeline.
        insecure: allow metrics on an address that is not loopback.

    Raises:
        UsageError: a value that is wrong, or contradicts another.
    """

    service: str
    coordinator: str | None = None
    teachers: tuple[str, ...] = ()
    feeds: tuple[tuple[str | None, FieldKey], ...] = ()
    fetches: tuple[str, ...] = ()
    labels: LabelForms = NO_FORMS
    upper_bytes: int = DEFAULT_UPPER_BYTES
    lower_bytes: int = DEFAULT_UPPER_BYTES // 2
    job: str = DEFAULT_JOB
    profiles: str = ""
    rank: int = 0
    world_size: int = 1
    uneven: Uneven = "keep"
    seed: int = 0
    ordered: bool = True
    deterministic: bool = False
    limits: Limits = DEFAULT_LIMITS
    teachers_min: int = 1
    teachers_max: int = 64
    priority: int = 0
    no_teacher: OnNoTeacher = "wait"
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    ensemble: EnsembleConfig | None = None
    canaries: CanaryPolicy | None = DEFAULT_CANARIES
    store: LabelStore | None = None
    shared_memory: bool = True
    security: ClientSecurity | None = None
    metrics_listen: str = ""
    trace: Trace | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.service:
            raise UsageError("a reader needs the name of a service, as in service='resnet101'")
        if bool(self.coordinator) == bool(self.teachers):
            raise UsageError(
                "a reader needs either coordinator='redis://host:6379' or teachers=['host:port']"
            )
        for address in self.teachers:
            check_address("", address)
        if not 0 <= self.lower_bytes < self.upper_bytes:
            raise UsageError(
                f"thresholds need 0 <= lower_bytes < upper_bytes, not {self.lower_bytes} and"
                f" {self.upper_bytes}"
            )
        if self.buffer_bytes < self.upper_bytes:
            raise UsageError(
                f"need upper_bytes <= buffer_bytes, not {self.upper_bytes} and {self.buffer_bytes}"
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
        window, window_max = self.limits.window, self.limits.window_max
        if not 1 <= window <= window_max:
            raise UsageError(f"need 1 <= window <= window_max, not {window} and {window_max}")
        if self.timeouts.request_s <= 0:
            raise UsageError(f"request_s must be above 0, not {self.timeouts.request_s}")
        rows = self.limits.request_rows
        if rows not in (None, "auto") and (
            isinstance(rows, bool) or not isinstance(rows, int) or rows < 1
        ):
            raise UsageError(
                f"request_rows is None, 'auto' or a number of rows from 1, not {rows!r}"
            )
        if self.deterministic and rows is not None:
            raise UsageError(
                "deterministic=True sends whole batches, because the bits of a label may depend on"
                " the other rows of its request: omit request_rows"
            )
        if "/" in self.job:
            raise UsageError(f"job {self.job!r} contains '/': choose a name without it")
        if self.rank < 0:
            raise UsageError(f"rank is an integer from 0, not {self.rank}")
        if self.seed < 0:
            raise UsageError(f"seed is an integer from 0, not {self.seed}")
        if self.trace is not None and self.trace.max_bytes < _MIN_TRACE_BYTES:
            raise UsageError(
                f"a trace's max_bytes is at least {_MIN_TRACE_BYTES}, not {self.trace.max_bytes}"
            )
        if self.store is not None:
            instance_of("store", self.store, LabelStore)
        if self.canaries is not None:
            instance_of("canaries", self.canaries, CanaryPolicy)
        self.labels.check_fetched(self.fetches)
        if self.ensemble is not None and not self.labels.expand:
            raise UsageError(
                "labels of several services are averaged as dense labels: do not set"
                " expand_labels=False"
            )
        self.policy()
        self.shard()

    @property
    def buffer_bytes(self) -> int:
        """Limit of the bytes of all batches that are pulled and not yet taken by the loop."""
        if self.limits.buffer_bytes is None:
            return max(_DEFAULT_BUFFER_BYTES, self.upper_bytes)
        return self.limits.buffer_bytes

    @property
    def request_timeout_s(self) -> float:
        """The timeout of a request to a teacher: `timeouts.request_s`, but at most 1e9 s.

        gRPC would treat a deadline beyond the range of its clock as one that has passed.
        """
        return min(self.timeouts.request_s, _LONGEST_REQUEST_S)

    def shard(self) -> RankShard:
        """Return this rank's share: all of the source unless the reader divides it."""
        return RankShard(self.rank if self.world_size != 1 else 0, self.world_size, self.uneven)

    @property
    def members(self) -> tuple[ReaderConfig, ...]:
        """The settings of each ensemble member, one per service."""
        if self.ensemble is None:
            return (self,)
        return tuple(
            replace(self, service=name, teachers=self.ensemble.addresses(name), ensemble=None)
            for name, _ in self.ensemble.weights
        )

    def policy(self) -> Policy:
        """Return what to do while there is no teacher; raises UsageError for invalid settings."""
        timeouts = self.timeouts
        limit_s = timeouts.wait_s if self.no_teacher == "wait" else timeouts.no_teacher_s
        try:
            return Policy(self.no_teacher, limit_s)
        except ValueError as error:
            raise UsageError(f"invalid no_teacher={self.no_teacher!r}: {error}") from None

    @property
    def student_id(self) -> str:
        """The student's name in the mesh: "JOB/RANK"."""
        return f"{self.job}/{self.rank}"


def profiles_of(folder: str | Path | None, coordinator: str | None, job: str) -> str:
    """Return the absolute path of the folder of profiles; empty if no profile is kept.

    No profile is kept without a coordinator, because the reader then requests no teachers. None is
    kept for unnamed trainings either, because all of them have the same job name.

    Raises:
        UsageError: `folder` is not a path.
    """
    if folder is None:
        return ""
    folder = path("profiles", folder)
    if coordinator is None or job == DEFAULT_JOB:
        return ""
    try:
        return str(folder.expanduser().absolute())
    except RuntimeError:  # this user has no home directory
        return ""


def rank_of(rank: int | None) -> int:
    """Return the rank: the user's, else the launcher's, else 0.

    Raises:
        UsageError: the launcher's variable is not a number.
    """
    if rank is not None:
        return rank
    for variable in RANK_VARIABLES:
        if value := os.environ.get(variable, ""):
            if value.isdecimal():
                return int(value)
            raise UsageError(f"{variable}={value} is not a rank: set rank= of the reader")
    return 0


def feed_pairs(feeds: Feeds | None) -> tuple[tuple[str | None, FieldKey], ...]:
    """Convert the user's `feeds` to pairs; raises UsageError if it is no list or dict of fields."""
    if feeds is None:
        return ()
    pairs: tuple[tuple[Any, Any], ...] = ()
    if isinstance(feeds, Mapping):
        pairs = tuple(feeds.items())
    elif isinstance(feeds, Iterable) and not isinstance(feeds, str):
        pairs = tuple((None, key) for key in feeds)
    fits = all(
        isinstance(name, str | None) and isinstance(key, int | str) and not isinstance(key, bool)
        for name, key in pairs
    )
    if not pairs or not fits:
        raise UsageError(
            "feeds is a list of fields, as in feeds=[0] or feeds=['image'], or a dict from input to"
            f" field; not {feeds!r}"
        )
    return pairs


def trace_of(trace: str | Path | Trace | None) -> Trace | None:
    """Return the user's `trace` with an absolute path; raises UsageError for other values."""
    if trace is None:
        return None
    settings = trace if isinstance(trace, Trace) else Trace(trace)
    return replace(settings, path=str(path("trace", settings.path).absolute()))


def security_of(
    tls: TLS, token_file: str | Path | None, *, insecure: bool = False
) -> ClientSecurity | None:
    """Return the user's credentials with absolute paths; None if there are none.

    Raises:
        UsageError: a file does not exist, or a setting is missing that another one needs.
    """
    fields = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    ca, cert, key = (_existing_file(f"TLS({name}=...)", value) for name, value in fields.items())
    token = _existing_file("token_file", token_file)
    files, server_name = TlsFiles(cert, key, ca), text("TLS(server_name=...)", tls.server_name)
    if not files.paths():
        if server_name:
            raise UsageError("TLS(server_name=...) is set without certificates: set ca= as well")
        if token is None:
            return None
    return ClientSecurity(files if files.paths() else None, token, server_name, insecure)


def _existing_file(setting: str, value: str | Path | None) -> Path | None:
    if value is None:
        return None
    if not path(setting, value).is_file():
        raise UsageError(f"there is no file {str(value)!r}, which is set as {setting}")
    return Path(value).absolute()
