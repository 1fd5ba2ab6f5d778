"""Settings of a reader that are rarely changed, in groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

from ..scheduler.no_teacher import GRACE_S
from .checking import settle

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
