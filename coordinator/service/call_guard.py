"""Admits calls: checks their credentials, limits their number and size, and counts refusals."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ...proto.security.access_control import AccessControl, Caller
from ...proto.status import to_status
from ...runtime.errors import (
    AccessError,
    EdlError,
    Forbidden,
    RateLimited,
    RetryableError,
    Unauthenticated,
    UsageError,
    VersionMismatch,
    WireError,
)
from ...scheduler.admission import RateLimit

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
OnRefused = Callable[[str], None]

_M = TypeVar("_M", bound=Message)


class TooLarge(RateLimited):
    """A message exceeds the limit."""


class Overloaded(RateLimited):
    """This manager is full; another one may have room."""


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    """Limits of one service manager.

    The defaults are an order of magnitude above what a mesh of 10,000 teachers and 1,000 students
    needs, and far below what would harm the manager.

    Attributes:
        message_bytes: size of a message.
        reports: rate of reports of each student's stream.
        first_report_s: seconds within which the first message of a stream or call must arrive.
        ping_s: seconds without a message after which a peer is pinged; it must answer in half that
            time. This ends the streams of a machine that lost its power.
        write_s: seconds within which a peer must read a message.
        listed: teachers in each list of a report: used, slow, ejected and so on.
        text: characters of a text in a report.
        streams: students' streams at this manager.
        streams_per_principal: students' streams with one credential.
        watchers: streams of the log at this manager.
        watchers_per_principal: streams of the log with one credential.
        calls: concurrent calls whose request has arrived, except those of students for their own
            status.
        silent: open calls whose request has not arrived yet.
    """

    message_bytes: int = 1 << 20
    reports: RateLimit = field(default_factory=lambda: RateLimit(20.0, 40.0))
    first_report_s: float = 10.0
    ping_s: float = 10.0
    write_s: float = 30.0
    listed: int = 4096
    text: int = 256
    streams: int = 8192
    streams_per_principal: int = 4096
    watchers: int = 64
    watchers_per_principal: int = 32
    calls: int = 64
    silent: int = 1024

    def check_size(self, data: bytes) -> None:
        """Raise TooLarge if a message exceeds the limit."""
        if len(data) > self.message_bytes:
            # gRPC's own words, "larger than max": clients recognize them, and do not try again.
            raise TooLarge(
                f"a message is larger than max ({len(data)} vs. {self.message_bytes} bytes)"
            )


class ConcurrencyLimit:
    """Limits how many calls or streams are open, in total and by principal. Only for one thread.

    Args:
        what: name of what is limited, for messages: "streams of students".
        most: limit in total.
        most_each: limit of one principal.
    """

    def __init__(self, what: str, most: int, most_each: int) -> None:
        self._what: Final = what
        self._most: Final = most
        self._most_each: Final = most_each
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Number of open calls or streams."""
        return self._taken.total()

    @contextmanager
    def hold(self, principal: str) -> Iterator[None]:
        """Count one more call or stream of this principal while the block runs.

        Raises:
            Overloaded: the limit in total is reached.
            RateLimited: the principal has reached its limit.
        """
        if self.taken >= self._most:
            raise Overloaded(f"this service manager has {self._most} {self._what}, its limit")
        if self._taken[principal] >= self._most_each:
            raise RateLimited(f"one credential may have at most {self._most_each} {self._what}")
        self._taken[principal] += 1
        try:
            yield
        finally:
            self._taken[principal] -= 1
            if not self._taken[principal]:
                del self._taken[principal]


class RefusedByGate(Forbidden):
    """A refusal that the gate has counted."""


#: Class of error -> reason in the metrics. An error has the reason of its nearest base class here;
#: an error without one is not a refusal. Empty: the gate has counted the refusal.
_REASONS: Final[dict[type[BaseException], str]] = {
    RefusedByGate: "",
    Unauthenticated: "",
    AccessError: "forbidden",
    VersionMismatch: "version",
    WireError: "malformed",
    UsageError: "malformed",
    TooLarge: "too_large",
    Overloaded: "overloaded",
    RateLimited: "rate_limited",
}


class CallGuard:
    """Admits calls, or ends them with an error.

    Args:
        gate: checks credentials, and counts its own refusals.
        limits: bounds sizes and times.
        on_refused: called with the reason of every other refusal.
    """

    def __init__(self, gate: AccessControl, limits: ManagerLimits, on_refused: OnRefused) -> None:
        self._gate = gate
        self._limits = limits
        self._on_refused = on_refused

    @property
    def revision(self) -> object:
        """Revision of the credentials, as `AccessControl.revision`."""
        return self._gate.revision

    async def admit(self, context: Context, *roles: str) -> Caller:
        """Return the caller if it has one of `roles` or is an admin; else abort the call.

        The request has not been read by then.
        """
        try:
            caller = self._caller(context)
            self._gate.require(caller, *roles)
        except AccessError as error:
            await self._abort(context, error)
        return caller

    def check_again(self, context: Context, role: str, student_id: str = "") -> None:
        """Check the credential of an admitted call again.

        Args:
            context: context of the call.
            role: role with which it was admitted.
            student_id: student that the call reports for; empty: none, or not known yet.

        Raises:
            AccessError: the credential was withdrawn, or now has another role or student.
        """
        caller = self._caller(context)
        self.check_role(caller, role)
        if student_id:
            self.check_own(caller, student_id)

    def check_role(self, caller: Caller, role: str) -> None:
        """Raise Forbidden unless the caller has the role or is an admin."""
        try:
            self._gate.require(caller, role)
        except Forbidden as error:
            raise RefusedByGate(str(error)) from None

    def check_own(self, caller: Caller, student_id: str) -> None:
        """Raise Forbidden if the credential of the caller is for other students."""
        try:
            self._gate.require_student(caller, student_id)
        except Forbidden as error:
            raise RefusedByGate(str(error)) from None

    async def refuse(self, context: Context, error: Exception) -> NoReturn:
        """Abort a call with an error; count it if it is a refusal that the gate has not counted."""
        reason = next((_REASONS[base] for base in type(error).__mro__ if base in _REASONS), "")
        if reason:
            self._on_refused(reason)
        elif not isinstance(error, EdlError):
            log.error("a call failed because of a bug", exc_info=error)
        await self._abort(context, error)

    async def first(self, requests: AsyncIterator[bytes], message: _M) -> _M:
        """Return the first message of a call, parsed into `message`.

        Raises:
            WireError: it did not arrive in time, or is incomplete or invalid.
            TooLarge: it exceeds the limit.
        """
        try:
            async with asyncio.timeout(self._limits.first_report_s):
                data = await anext(requests, None)
        except TimeoutError:
            raise WireError(
                f"no message arrived within {self._limits.first_report_s:g} s of the call's start"
            ) from None
        if data is None:  # truncated, or larger than gRPC's own limit
            raise WireError(f"the call ended without a complete {message.DESCRIPTOR.name}")
        return self.parsed(message, data)

    def parsed(self, message: _M, data: bytes) -> _M:
        """Parse `data` into `message` and return it.

        Raises:
            WireError: it is invalid.
            TooLarge: it exceeds the limit.
        """
        self._limits.check_size(data)
        try:
            message.ParseFromString(data)
        except DecodeError:
            name = message.DESCRIPTOR.name
            raise WireError(f"the request is not a valid {name} message") from None
        return message

    async def write(self, context: Context, message: Message) -> None:
        """Send a message. Raise RetryableError if the caller does not read it in time."""
        try:
            async with asyncio.timeout(self._limits.write_s):
                await context.write(message.SerializeToString())
        except TimeoutError:
            raise RetryableError("the caller does not read its messages") from None

    def _caller(self, context: Context) -> Caller:
        return self._gate.admit(
            context.invocation_metadata() or (), context.auth_context(), context.peer()
        )

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        await context.abort(*to_status(error))
        raise AssertionError("abort does not return")
