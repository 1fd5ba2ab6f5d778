"""Who may call what, what a call's first bytes have to be, and what becomes of those refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ...proto.security import AccessControl, Caller
from ...proto.status import to_status
from ...runtime.errors import (
    AccessError,
    EdlError,
    Forbidden,
    RateLimited,
    Unauthenticated,
    UsageError,
    VersionMismatch,
    WireError,
)
from ..limits import ManagerLimits, Overloaded, TooLarge

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
OnRefused = Callable[[str], None]

_M = TypeVar("_M", bound=Message)


class RefusedByGate(Forbidden):
    """One that the gate has counted."""


#: What each refusal is counted as; the nearest class counts. Other errors are no refusals.
_REASONS: Final[dict[type[BaseException], str]] = {
    RefusedByGate: "",
    Unauthenticated: "",  # which the gate alone says, and counts
    AccessError: "forbidden",
    VersionMismatch: "version",
    WireError: "malformed",
    UsageError: "malformed",
    TooLarge: "too_large",
    Overloaded: "overloaded",
    RateLimited: "rate_limited",
}


class CallGuard:
    """Lets a call in, or answers it with what is wrong.

    Args:
        gate: knows credentials; it counts those that it refuses itself.
        limits: sizes and times.
        on_refused: called with the reason of every other refusal.
    """

    def __init__(self, gate: AccessControl, limits: ManagerLimits, on_refused: OnRefused) -> None:
        self._gate = gate
        self._limits = limits
        self._on_refused = on_refused

    @property
    def revision(self) -> object:
        """See `AccessControl.revision`."""
        return self._gate.revision

    async def admit(self, context: Context, *roles: str) -> Caller:
        """Who calls, in one of `roles` or an admin; ends the call otherwise, before it is read."""
        try:
            caller = self._caller(context)
            self._gate.require(caller, *roles)
        except AccessError as error:
            await self._abort(context, error)
        return caller

    def check_again(self, context: Context, role: str, student_id: str = "") -> None:
        """Look at the credential of a call that was admitted some time ago.

        Args:
            context: of the call.
            role: what it was admitted for.
            student_id: the student that it reports for; empty: none, or it has not said.

        Raises:
            AccessError: it was withdrawn, or is another role's or another student's by now.
        """
        caller = self._caller(context)
        self.check_role(caller, role)
        if student_id:
            self.check_own(caller, student_id)

    def check_role(self, caller: Caller, role: str) -> None:
        """Raises Forbidden when `caller` is neither a `role` nor an admin."""
        try:
            self._gate.require(caller, role)
        except Forbidden as error:
            raise RefusedByGate(str(error)) from None

    def check_own(self, caller: Caller, student_id: str) -> None:
        """Raises Forbidden when the credential of `caller` is for other students."""
        try:
            self._gate.require_student(caller, student_id)
        except Forbidden as error:
            raise RefusedByGate(str(error)) from None

    async def refuse(self, context: Context, error: Exception) -> NoReturn:
        """End a call by `error`; count it if it is the caller's fault."""
        reason = next((_REASONS[k] for k in type(error).__mro__ if k in _REASONS), "")
        if reason:
            self._on_refused(reason)
        elif not isinstance(error, EdlError):
            log.error("a call failed because of a bug", exc_info=error)
        await self._abort(context, error)

    async def first(self, requests: AsyncIterator[bytes]) -> bytes | None:
        """The first message of a call; None when the call ends without one.

        Raises:
            WireError: it did not come in time.
            TooLarge: it is above the limit.
        """
        try:
            async with asyncio.timeout(self._limits.first_report_s):
                data = await anext(requests, None)
        except TimeoutError:
            raise WireError(
                f"nothing was said within {self._limits.first_report_s:g} s of the call's begin"
            ) from None
        if data is not None:
            self._limits.check_size(data)
        return data

    def _caller(self, context: Context) -> Caller:
        return self._gate.admit(
            context.invocation_metadata() or (), context.auth_context(), context.peer()
        )

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        await context.abort(*to_status(error))
        raise AssertionError("abort does not return")


def parsed(message: _M, data: bytes) -> _M:
    """`message`, filled; raises WireError when the bytes are something else."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise WireError(f"these bytes are no {message.DESCRIPTOR.name} message") from None
    return message
