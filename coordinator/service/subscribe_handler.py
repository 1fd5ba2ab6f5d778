"""The method Subscribe: for each student's stream, a task that sends and a task that receives.

The handler uses tasks, because a thousand students would need too many threads. The manager runs in
threads of its own: it gets reports by its queue, and sends assignments by the loop's
`call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from ...proto import coordinator_pb2 as pb
from ...proto.protocols import check_version
from ...proto.security.access_control import Caller
from ...runtime.errors import (
    AccessError,
    EdlError,
    RateLimited,
    RetryableError,
    UnavailableError,
    WireError,
)
from ...scheduler.admission import full_bucket, take_token
from ...scheduler.circuit_breakers import IN_WORDS
from ..calling.discovery import BEAT_METADATA, SECRET_METADATA
from ..manager.manager import Manager
from ..manager.student_sessions import StudentCaller
from ..registry.schema import check_member, check_service
from .call_guard import CallGuard, ConcurrencyLimit, Context, ManagerLimits


class StudentStream:
    """The manager's end of a student's stream; it holds the latest assignment until it is sent.

    Any thread may push; one task sends.

    Attributes:
        report: the student's latest report; None: it has sent none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.report: pb.StudentReport | None = None
        self._loop = loop
        self._changed = asyncio.Event()
        self._latest: pb.Assignment | None = None
        self._error: EdlError | None = None
        self._finished = False

    def push(self, assignment: pb.Assignment) -> None:
        """Queue an assignment; it replaces an unsent one. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._set_latest, assignment)

    def close(self, error: EdlError) -> None:
        """End the stream with `error`. May be called from any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.fail, error)

    def fail(self, error: EdlError) -> None:
        """End the stream with `error`; only in the loop's thread."""
        self._error = self._error or error
        self._changed.set()

    def finish(self) -> None:
        """Record that the student has closed its side; only in the loop's thread."""
        self._finished = True
        self._changed.set()

    async def next(self) -> pb.Assignment | None:
        """Wait for the next assignment; None: the student closed its side.

        Raises:
            EdlError: the error that was passed to `fail` or `close`.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._error is not None:
                raise self._error
            if self._finished:
                return None
            if (latest := self._latest) is not None:
                self._latest = None
                return latest

    def _set_latest(self, assignment: pb.Assignment) -> None:
        self._latest = assignment
        self._changed.set()


log = logging.getLogger(__name__)

#: Seconds to wait after the reports have ended. If the connection was lost, gRPC cancels the call
#: in this time; otherwise the student has closed the stream.
_LOSS_S: Final = 0.1
#: Seconds between checks of open streams for withdrawn credentials.
_RECHECK_S: Final = 1.0
_SECRET_BYTES: Final = 24
_MAX_SECRET_LENGTH: Final = 128


@dataclass(slots=True)
class _Admitted:
    """An admitted call, and the revision of the credentials when it was last checked."""

    context: Context
    revision: object


class SubscribeHandler:
    """Passes reports to the manager and assignments to students.

    Args:
        manager: the manager.
        guard: admits callers.
        limits: bounds the number of streams and the rate and size of reports.
    """

    def __init__(self, manager: Manager, guard: CallGuard, limits: ManagerLimits) -> None:
        self._manager = manager
        self._guard = guard
        self._limits = limits
        self._streams = ConcurrencyLimit(
            "streams of students", limits.streams, limits.streams_per_principal
        )
        self._open: dict[StudentStream, _Admitted] = {}

    def end_all(self) -> None:
        """End all streams, so that their students choose another manager."""
        for stream in self._open:
            stream.fail(UnavailableError("this service manager stops: use another"))

    async def recheck(self) -> None:
        """End streams whose credentials were withdrawn; runs until it is cancelled."""
        while True:
            await asyncio.sleep(_RECHECK_S)
            revision = self._guard.revision
            for stream, admitted in list(self._open.items()):
                if admitted.revision is revision:
                    continue
                student_id = ""  # unknown before the first report: checked again until it comes
                if stream.report is not None:
                    student_id, admitted.revision = stream.report.student_id, revision
                try:
                    self._guard.check_again(admitted.context, "student", student_id)
                except AccessError as error:
                    log.warning("the subscription of student %s ends: %s", student_id, error)
                    stream.fail(error)
                except Exception:  # checks of the other streams continue
                    log.exception("a credential could not be checked again")

    async def handle(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one call."""
        admitted = _Admitted(context, self._guard.revision)
        caller = await self._guard.admit(context, "student")
        try:
            with self._streams.hold(caller.principal):
                await self._serve(requests, admitted, caller)
        except EdlError as error:
            await self._guard.refuse(context, error)

    async def _serve(
        self, requests: AsyncIterator[bytes], admitted: _Admitted, caller: Caller
    ) -> None:
        context = admitted.context
        student_caller = StudentCaller(caller.principal, _secret(context))
        # Sent before the first report is read, so no manager stores a secret that was never sent.
        await context.send_initial_metadata(
            (
                (BEAT_METADATA, f"{self._manager.beat_s:.3f}"),
                (SECRET_METADATA, student_caller.secret),
            )
        )
        stream = StudentStream(asyncio.get_running_loop())
        receiving = asyncio.create_task(self._receive(requests, stream, caller, student_caller))
        self._open[stream] = admitted
        closed = False
        try:
            while (assignment := await stream.next()) is not None:
                await self._guard.write(context, assignment)
            await asyncio.sleep(_LOSS_S)
            closed = True
        finally:
            del self._open[stream]
            receiving.cancel()
            if stream.report is not None:
                self._manager.end(stream, stream.report, clean=closed)

    async def _receive(
        self,
        requests: AsyncIterator[bytes],
        stream: StudentStream,
        caller: Caller,
        student_caller: StudentCaller,
    ) -> None:
        try:
            report = await self._guard.first(requests, pb.StudentReport())
            check_report(report, None, self._limits)
            self._guard.check_own(caller, report.student_id)
            stream.report = report
            self._manager.subscribe(stream, report, student_caller)
            await self._receive_further(requests, stream, report)
        except EdlError as error:
            stream.fail(error)
        except Exception as error:  # from gRPC, if the connection breaks
            log.debug("a subscription broke: %s", error)
            stream.fail(RetryableError("the subscription broke"))
        else:
            stream.finish()

    async def _receive_further(
        self, requests: AsyncIterator[bytes], stream: StudentStream, former: pb.StudentReport
    ) -> None:
        rate = self._limits.reports
        bucket = full_bucket(rate, time.monotonic())
        async for data in requests:
            bucket, passes = take_token(rate, bucket, time.monotonic())
            if not passes:
                raise RateLimited(
                    f"a student sends more than {rate.per_second:g} reports per second"
                )
            report = self._guard.parsed(pb.StudentReport(), data)
            check_report(report, former, self._limits)
            stream.report = former = report
            self._manager.report(stream, report)


def _secret(context: Context) -> str:
    """Return the secret that the client sent, or a new one."""
    for name, value in context.invocation_metadata() or ():
        if name == SECRET_METADATA and 0 < len(value) <= _MAX_SECRET_LENGTH:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return secrets.token_urlsafe(_SECRET_BYTES)


#: Greatest integer in a report. Terms are milliseconds since 1970, and incarnations microseconds:
#: even their sums are far below.
_MAX_INTEGER: Final = 1 << 62
_STATES: Final = frozenset({"", "steady", "starved", "blocked", "source_wait"})
_CAUSES: Final = frozenset(IN_WORDS)
_FIELDS: Final[tuple[Any, ...]] = tuple(pb.StudentReport.DESCRIPTOR.fields)
_Type = FieldDescriptor


def check_report(
    report: pb.StudentReport, former: pb.StudentReport | None, limits: ManagerLimits
) -> None:
    """Raise an error if a report is invalid.

    Args:
        report: the report.
        former: the report before it on the same stream; None: it is the first.
        limits: bounds its contents.

    Raises:
        VersionMismatch: it has another version of the protocol.
        UsageError: a name is invalid.
        WireError: another field is invalid.
    """
    check_version(report.protocol_version)
    check_service(report.service)
    check_member("students", report.student_id)
    lists = (
        report.teachers,
        report.stragglers,
        report.ejected,
        report.disputed,
        report.half_open,
        report.unavailable,
    )
    longest = max(map(len, lists))
    if longest > limits.listed:
        raise WireError(f"a report names {longest} teachers; at most {limits.listed}")
    for teacher in chain.from_iterable(lists):
        check_member("teachers", teacher)
    if len(report.ejected) != len(report.ejected_for) or not _CAUSES.issuperset(report.ejected_for):
        raise WireError(
            f"a report needs one of {sorted(_CAUSES)} as the cause of each ejected teacher"
        )
    for field in _FIELDS:
        if not field.is_repeated:
            _check_value(field, getattr(report, field.name), limits)
    if report.state not in _STATES:
        raise WireError(f"a student has no state {report.state!r:.80}")
    if former is not None and _identity(report) != _identity(former):
        raise WireError(
            f"a stream belongs to one student: it began with {_identity(former)}, and now reports "
            f"for {_identity(report)}"
        )


def _check_value(field: FieldDescriptor, value: Any, limits: ManagerLimits) -> None:
    if field.cpp_type == _Type.CPPTYPE_STRING:
        if len(value) > limits.text:
            raise WireError(f"{field.name} has {len(value)} characters; at most {limits.text}")
        if not value.isprintable() or (" " in value):
            raise WireError(f"{field.name} contains spaces or control characters: {value!r:.80}")
    elif field.cpp_type == _Type.CPPTYPE_DOUBLE:
        if not 0.0 <= value < math.inf:
            raise WireError(f"{field.name} must be finite and not negative, not {value}")
    elif value > _MAX_INTEGER:
        raise WireError(f"{field.name} {value} is out of range")


def _identity(report: pb.StudentReport) -> tuple[str, str, int]:
    return report.service, report.student_id, report.incarnation
