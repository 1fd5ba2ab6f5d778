"""Admission of calls over gRPC, HTTP and our own transport: access rights, and limits.

A call is idle until its request has arrived; a stream is also idle between its requests. An idle
call costs its caller nearly nothing, so anybody can open many. Therefore idle calls never cause a
refusal: if there is no room for a new call, an idle call is ended. If the caller of the new call
has too many calls, it is this caller's longest idle call; else it is the longest idle call of the
caller with the most idle calls. Usual clients send the request along with the call, so their calls
are idle only until the request has arrived.

Memory is reserved before a request is received: its announced length, or the largest allowed length
for gRPC and chunked HTTP, which announce none. A gRPC stream keeps the largest length reserved for
its next request, which it may send at any moment. If memory is short, an idle stream may be ended
for another call, and so may a call that has not sent its request within a second.

A request that has arrived takes one of the slots for requests that wait for the model or run in it.

Over gRPC and HTTP, the answer counts instead of the request until the caller has read nearly all of
it. HTTP cuts off a caller that does not read; gRPC cannot end such a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Literal, Self

from ...proto.security.access_control import AccessControl
from ...runtime.errors import RateLimited, RetryableError
from ..config import ServerConfig
from .callers import CallCredentials, CallerIdentity

#: A call that has sent no request after this many seconds may be ended to free its memory.
REQUEST_WITHIN_S: Final = 1.0
#: Longest pause in seconds until a waiting call tries again to reserve memory.
_EVICTION_CHECK_S: Final = 0.25
_NO_ROOM: Final = "the memory for requests is full: try again later"
EVICTED: Final = "this call was idle, so the server ended it to make room for another one"


#: Who may call a method. Load balancers have no token and may only probe whether a teacher is up.
AccessLevel = Literal["anybody", "authenticated", "student"]


class CallAdmission:
    """Admits the calls of one server. Used only in its event loop.

    Args:
        config: the limits.
        access: authenticates callers.

    Attributes:
        access: authenticates callers.
        infer_calls: open calls with batches to label.
        small_calls: open calls with small requests. They are counted separately, so that batches
            leave room for them.
    """

    def __init__(self, config: ServerConfig, access: AccessControl) -> None:
        limits = (
            config.max_calls,
            config.max_calls_per_peer,
            config.request_bytes,
            max(config.request_bytes // 4, config.max_message_bytes),
        )
        self.infer_calls, self.small_calls = CallTable(*limits), CallTable(*limits)
        self.access = access

    def admit(self, credentials: CallCredentials, access: AccessLevel) -> CallerIdentity:
        """Authenticate a caller, and check that it may call methods of this access level.

        Raises:
            AccessError: a credential is missing or unknown, or lacks the right.
        """
        if access == "anybody":
            self.access.handshakes.call_received(credentials.peer)
            return credentials.caller_identity()
        caller = self.access.admit(credentials.metadata, credentials.identities, credentials.peer)
        if access == "student":
            self.access.require(caller, "student")
        return credentials.caller_identity(caller.principal)

    def student_of(self, credentials: CallCredentials) -> CallerIdentity | None:
        """Return the caller; None, without counting a refusal, if it lacks a student's rights.

        Raises:
            AccessError: a credential is missing or unknown.
        """
        caller = self.access.admit(credentials.metadata, credentials.identities, credentials.peer)
        return credentials.caller_identity(caller.principal) if caller.may("student") else None


@dataclass(slots=True, eq=False)
class AdmittedCall:
    """One call in a table; as a context manager, it calls `end` after the block.

    Attributes:
        table: the table that holds it.
        owner: `CallerIdentity.owner` of its caller.
        nbytes: memory reserved for its request, or a stream's requests.
        bytes_in_work: size of the requests of a stream that are read, or of their answers, until
            these are written.
        is_stream: whether it may send many requests, at any time.
        since_s: its start, on the table's clock.
        is_idle: whether it has sent no request yet, or its last request is answered; an idle call
            may be evicted.
        evicted: whether it was ended to make room.
        on_evicted: called once when it is evicted.
    """

    table: CallTable
    owner: str
    is_stream: bool
    since_s: float
    nbytes: int = 0
    bytes_in_work: int = 0
    is_idle: bool = True
    evicted: bool = False
    on_evicted: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @contextlib.asynccontextmanager
    async def request_timeout(self, within_s: float) -> AsyncIterator[None]:
        """Limit the time for which the block waits for memory and for the request.

        Args:
            within_s: seconds from now.

        Raises:
            RetryableError: the request did not arrive in time.
            RateLimited: there was no memory for it, or the call was ended for another one.
        """
        on_evicted = self.on_evicted
        try:
            async with asyncio.timeout(0.0 if self.evicted else within_s) as limit:
                self.on_evicted = lambda: _expire_now(limit)
                yield
        except TimeoutError:
            if self.evicted:
                raise RateLimited(EVICTED) from None
            if not self.nbytes:
                raise RateLimited(_NO_ROOM) from None
            raise RetryableError(
                f"the request did not arrive within {within_s:g} s of its call"
            ) from None
        finally:
            self.on_evicted = on_evicted

    async def wait_and_reserve(self, nbytes: int) -> None:
        """Wait until memory for a request of up to `nbytes` is free, and reserve it."""
        while not self.table.try_reserve(self, self.bytes_in_work + nbytes):
            await self.table.wait_for_room()

    def reserve(self, nbytes: int) -> None:
        """Set the reservation of this call to `nbytes`, for all its requests together.

        Raises:
            RateLimited: there is not enough memory.
        """
        if not self.table.try_reserve(self, nbytes):
            raise RateLimited(_NO_ROOM)

    def request_received(self, nbytes: int | None = None) -> None:
        """Record that a request has arrived or is arriving, so the call is no longer idle.

        Args:
            nbytes: bytes that the call needs from now on; None: as many as are reserved.
        """
        if self.is_idle:
            self.table.set_idle(self, False)
        if nbytes is not None:
            self.table.set_reserved(self, nbytes)

    def keep_reserved(self, nbytes: int) -> None:
        """Keep only the memory that a stream needs for its requests in work and the next one.

        Args:
            nbytes: the largest size of the next request.
        """
        self.table.set_reserved(self, min(self.nbytes, self.bytes_in_work + nbytes))

    def answer_ready(self, request_bytes: int, answer_bytes: int) -> None:
        """Replace the memory of a request by that of its answer, which may wait for its reader."""
        more = answer_bytes - request_bytes
        self.bytes_in_work += more
        self.table.set_reserved(self, self.nbytes + more)

    def mark_idle(self) -> None:
        """Record that all requests of a stream are answered: until the next, it may be evicted."""
        self.table.set_idle(self, True)

    def end(self) -> None:
        """Remove the call from its table, unless it was evicted."""
        self.on_evicted = lambda: None  # breaks a reference cycle
        if not self.evicted:
            self.table.remove(self)


class CallTable:
    """One group of a server's open calls, with their memory. Used only in its event loop.

    Args:
        max_calls: limit of open calls.
        max_calls_per_owner: limit of open calls of one owner.
        max_bytes: limit of the memory of all requests.
        max_bytes_per_owner: limit of the memory of the requests of one owner; at least the largest
            request.
        clock: seconds, monotonic.

    Attributes:
        idle_calls: idle calls by owner, the longest idle first.
    """

    def __init__(
        self,
        max_calls: int,
        max_calls_per_owner: int,
        max_bytes: int,
        max_bytes_per_owner: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._max_calls = max_calls
        self._max_calls_per_owner = max_calls_per_owner
        self._max_bytes = max_bytes
        self._max_bytes_per_owner = max_bytes_per_owner
        self._total = self._bytes = 0
        self._calls_by_owner: dict[str, int] = {}
        self._bytes_by_owner: dict[str, int] = {}
        #: Set for a moment, which wakes the calls that wait for memory.
        self._more_room = asyncio.Event()
        self.idle_calls: dict[str, dict[AdmittedCall, None]] = {}

    def __len__(self) -> int:
        return self._total

    def begin(self, owner: str, *, is_stream: bool = False) -> AdmittedCall:
        """Add a call that has sent nothing yet.

        Raises:
            RateLimited: there is no room, and no idle call that may be ended for this one.
        """
        if self._calls_by_owner.get(owner, 0) >= self._max_calls_per_owner:
            self._make_room(
                owner,
                f"{self._max_calls_per_owner} calls of one client are open: wait until one ends",
            )
        elif self._total >= self._max_calls:
            greediest = max(
                self.idle_calls, key=lambda name: len(self.idle_calls[name]), default=""
            )
            self._make_room(greediest, f"{self._max_calls} calls are open: try again later")
        call = AdmittedCall(self, owner, is_stream, self._clock())
        self._total += 1
        self._calls_by_owner[owner] = self._calls_by_owner.get(owner, 0) + 1
        self.idle_calls.setdefault(owner, {})[call] = None
        return call

    # --- called by `AdmittedCall`

    def try_reserve(self, call: AdmittedCall, nbytes: int) -> bool:
        """Reserve `nbytes` for a call, evicting idle calls if needed; False if that fails."""
        more = nbytes - call.nbytes
        while True:
            if self._bytes_by_owner.get(call.owner, 0) + more > self._max_bytes_per_owner:
                idle = self._evictable(call.owner, call)
            elif self._bytes + more > self._max_bytes:
                evictable = (self._evictable(owner, call) for owner in self.idle_calls)
                idle = max(evictable, key=len, default=[])
            else:
                self.set_reserved(call, nbytes)
                return True
            if not idle:
                return False
            self._evict(idle[0])

    async def wait_for_room(self) -> None:
        """Wait until another attempt to reserve memory may succeed, at most `_EVICTION_CHECK_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EVICTION_CHECK_S):
                await self._more_room.wait()

    def set_reserved(self, call: AdmittedCall, nbytes: int) -> None:
        """Set the reserved memory of a call, without a check of limits."""
        more = nbytes - call.nbytes
        if call.evicted or not more:
            return
        call.nbytes = nbytes
        self._bytes += more
        self._bytes_by_owner[call.owner] = self._bytes_by_owner.get(call.owner, 0) + more
        if not self._bytes_by_owner[call.owner]:
            del self._bytes_by_owner[call.owner]
        if more < 0:
            self._wake()

    def set_idle(self, call: AdmittedCall, idle: bool) -> None:
        """Set whether a call waits for a request, so that it may be evicted."""
        call.is_idle = idle
        if idle:
            self.idle_calls.setdefault(call.owner, {})[call] = None
            self._wake()
        elif (idle_calls := self.idle_calls.get(call.owner)) is not None:
            idle_calls.pop(call, None)
            if not idle_calls:
                del self.idle_calls[call.owner]

    def remove(self, call: AdmittedCall) -> None:
        self.set_idle(call, False)
        self.set_reserved(call, 0)
        self._total -= 1
        self._calls_by_owner[call.owner] -= 1
        if not self._calls_by_owner[call.owner]:
            del self._calls_by_owner[call.owner]

    # --- making room

    def _wake(self) -> None:
        """Wake the calls that wait for memory."""
        self._more_room.set()
        self._more_room.clear()

    def _evictable(self, owner: str, requester: AdmittedCall) -> list[AdmittedCall]:
        """Return the calls of an owner that may be ended to free memory for `requester`.

        The call that has been idle longest comes first.
        """
        late_s = self._clock() - REQUEST_WITHIN_S
        return [
            call
            for call in self.idle_calls.get(owner, ())
            if call.nbytes and call is not requester and (call.is_stream or call.since_s <= late_s)
        ]

    def _make_room(self, owner: str, refusal: str) -> None:
        """Evict the call of an owner that has been idle longest; without one, refuse."""
        idle_calls = self.idle_calls.get(owner)
        if not idle_calls:
            raise RateLimited(refusal)
        self._evict(next(iter(idle_calls)))

    def _evict(self, victim: AdmittedCall) -> None:
        self.remove(victim)
        victim.evicted = True
        victim.on_evicted()


class Deadline:
    """A timer that calls `on_late` unless it is stopped within `seconds` of its start."""

    def __init__(self, seconds: float, on_late: Callable[[], None]) -> None:
        self._seconds, self._on_late = seconds, on_late
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer, unless it runs."""
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(self._seconds, self._expire)

    def stop(self) -> None:
        """Stop the timer, if it runs."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _expire(self) -> None:
        self._handle = None
        self._on_late()


class SendingDeadline(Deadline):
    """A timer that aborts a connection when its peer has read nothing for `seconds`.

    A peer that reads slowly keeps its connection.

    Args:
        transport: transport of the connection.
        seconds: time within which the peer must read something.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        super().__init__(seconds, self._check_progress)
        self._transport = transport
        self._unsent = 0  # bytes unsent at the last check, plus those written since

    def start(self) -> None:
        """Start the timer; call this while the peer has unread data."""
        self._unsent = self._transport.get_write_buffer_size()
        super().start()

    def write(self, data: bytes) -> None:
        """Write to the transport. While the timer runs, all writes must use this method.

        Otherwise the check would take new unsent bytes for bytes that the peer has not read.
        """
        before = self._transport.get_write_buffer_size()
        is_running = self._handle is not None
        self._transport.write(data)
        if is_running:
            self._unsent += self._transport.get_write_buffer_size() - before

    def _check_progress(self) -> None:
        if self._transport.get_write_buffer_size() < self._unsent:
            self.start()
        else:
            self._transport.abort()


def _expire_now(limit: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it has expired already
        limit.reschedule(0.0)
