"""Admission of calls, by gRPC, HTTP and our own transport: who may ask, and how much at once.

A call that has not sent its request yet costs nearly nothing to its caller, so anybody can open
many. Therefore nothing is refused because of them: where there is no room, the oldest call that
still owes its request is ended for the new one, of those callers that have most such calls. Whoever
sends its request along with the call, as every client does, is served throughout.

Before a request is received there has to be room for its bytes: for the length that HTTP and our
own transport announce, and for the longest message there may be of gRPC, which announces none. A
stream may send its next request at any moment, so it keeps that room; while it is idle it can be
ended for another call, and so can any call that has owed its request for a second.

A request that is here takes one of the slots, of those that wait for the model or run in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Literal, Self

from ...errors import RateLimited, RetryableError
from ...proto.security import Gate
from ..config import ServerConfig
from .callers import CallCredentials, CallerIdentity

#: Seconds after which a call that owes its request may be ended for the bytes of another one.
PATIENCE_S: Final = 1.0
#: Between two looks whether some have owed theirs for so long.
_LOOK_S: Final = 0.25
_NO_ROOM: Final = "requests of other calls fill the memory for them: try again later"
_EVICTED: Final = "a call that sent nothing was ended for another one"


#: Whom a method is for. Load balancers, who have no token, may ask only whether a teacher is here.
AccessLevel = Literal["anybody", "known", "student"]


class CallAdmission:
    """Lets the calls of one server in; lives in its event loop.

    Args:
        config: the limits.
        gate: who may ask.

    Attributes:
        infer_calls: those that have batches labelled.
        named_calls: those whose requests hold names. Apart, so that batches which fill the one
            leave room for questions in the other.
    """

    def __init__(self, config: ServerConfig, gate: Gate) -> None:
        self.infer_calls, self.named_calls = CallTable.of(config), CallTable.of(config)
        self._gate = gate

    def admit(self, credentials: CallCredentials, right: AccessLevel) -> CallerIdentity:
        """Who has shown this.

        Raises:
            AccessError: a credential is missing or unknown, or is not that of whom it is for.
        """
        if right == "anybody":
            self._gate.call_received(credentials.peer)
            return credentials.caller_identity()
        caller = self._gate.admit(credentials.metadata, credentials.identities, credentials.peer)
        if right == "student":
            self._gate.require(caller, "student")
        return credentials.caller_identity(caller.principal)

    def is_student(self, credentials: CallCredentials) -> bool:
        """Whether a student has shown this; who has not is not counted as refused."""
        return self._gate.admit(credentials.metadata, credentials.identities, credentials.peer).may(
            "student"
        )


@dataclass(slots=True, eq=False)
class AdmittedCall:
    """One call that a table holds; in a `with` statement it ends with that.

    Attributes:
        table: that holds it.
        peer: who makes it.
        nbytes: of its request, as far as there is room kept for them.
        is_stream: it may send many requests, at any time.
        since_s: when it began, on the table's clock.
        evicted: it was ended to make room.
        on_evicted: called once, when that happens.
    """

    table: CallTable
    peer: str
    is_stream: bool
    since_s: float
    nbytes: int = 0
    evicted: bool = False
    on_evicted: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @contextlib.asynccontextmanager
    async def receiving(self, within_s: float) -> AsyncIterator[None]:
        """Within this, wait for room and for the request.

        Args:
            within_s: seconds from now.

        Raises:
            RetryableError: the request did not come in time.
            RateLimited: there was no room for it, or the call had to make room for another one.
        """
        on_evicted = self.on_evicted
        try:
            async with asyncio.timeout(0.0 if self.evicted else within_s) as limit:
                self.on_evicted = lambda: _expire(limit)
                yield
        except TimeoutError:
            if self.evicted:
                raise RateLimited(_EVICTED) from None
            if not self.nbytes:
                raise RateLimited(_NO_ROOM) from None
            raise RetryableError(
                f"the request did not come within {within_s:g} s of its call"
            ) from None
        finally:
            self.on_evicted = on_evicted

    async def expect(self, nbytes: int) -> None:
        """Wait until there is room for a request of up to so many bytes, and keep it."""
        while not self.table.has_room(self, nbytes):
            await self.table.wait_for_room()

    def announced(self, nbytes: int) -> None:
        """Its request is going to have so many bytes: keep room for them.

        Raises:
            RateLimited: there is none.
        """
        if not self.table.has_room(self, nbytes):
            raise RateLimited(_NO_ROOM)

    def received(self, nbytes: int | None = None) -> None:
        """Its request is here: from now on it is worth its place.

        Args:
            nbytes: that it has; None: as many as were announced.
        """
        self.table.owes(self, yes=False)
        if nbytes is not None:
            self.table.keep(self, nbytes)

    def owes(self) -> None:
        """It is a stream whose last request is answered: it owes the next."""
        self.table.owes(self)

    def check(self) -> None:
        """Raise RateLimited where it was ended to make room."""
        if self.evicted:
            raise RateLimited(_EVICTED)

    def end(self) -> None:
        """It is over; an evicted one has ended before."""
        self.on_evicted = lambda: None  # or it and what it was told would know each other
        if not self.evicted:
            self.table.forget(self)


class CallTable:
    """The calls of one server; used by its event loop only.

    Args:
        most: calls at once.
        most_of_one: calls of one peer at once.
        most_bytes: of their requests at once.
        most_bytes_of_one: of requests of one peer at once; at least of one request.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        most: int,
        most_of_one: int,
        most_bytes: int,
        most_bytes_of_one: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._most = most
        self._most_of_one = most_of_one
        self._most_bytes = most_bytes
        self._most_bytes_of_one = most_bytes_of_one
        self._total = self._bytes = 0
        self._of: dict[str, int] = {}
        self._bytes_of: dict[str, int] = {}
        #: Calls that wait for room for their bytes.
        self._short: deque[asyncio.Future[None]] = deque()
        #: Calls that owe their request, the oldest first.
        self._owing: dict[str, dict[AdmittedCall, None]] = {}

    @classmethod
    def of(cls, config: ServerConfig) -> Self:
        """With the limits of a server."""
        return cls(
            config.max_calls,
            config.max_calls_per_peer,
            config.request_bytes,
            config.request_bytes_per_peer,
        )

    def __len__(self) -> int:
        return self._total

    def begin(self, peer: str, *, is_stream: bool = False) -> AdmittedCall:
        """Take a call that has sent nothing yet.

        Raises:
            RateLimited: there is no room, and every call has sent its request.
        """
        if self._of.get(peer, 0) >= self._most_of_one:
            self._make_room(peer, f"{self._most_of_one} calls of one client are open: wait for one")
        elif self._total >= self._most:
            greediest = max(self._owing, key=lambda name: len(self._owing[name]), default="")
            self._make_room(greediest, f"{self._most} calls are open: try again later")
        call = AdmittedCall(self, peer, is_stream, self._clock())
        self._total += 1
        self._of[peer] = self._of.get(peer, 0) + 1
        self._owing.setdefault(peer, {})[call] = None
        return call

    # --- told by its calls

    def has_room(self, call: AdmittedCall, nbytes: int) -> bool:
        """Keep room for so many bytes, for which idle calls are ended; whether there is any."""
        more = nbytes - call.nbytes
        while True:
            if self._bytes_of.get(call.peer, 0) + more > self._most_bytes_of_one:
                idle = self._idle(call.peer, call)
            elif self._bytes + more > self._most_bytes:
                every = (self._idle(peer, call) for peer in self._owing)
                idle = max(every, key=len, default=[])
            else:
                self.keep(call, nbytes)
                return True
            if not idle:
                return False
            self._evict(idle[0])

    async def wait_for_room(self) -> None:
        """Until there may be more, or others have owed their request for too long."""
        more_room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._short.append(more_room)
        try:
            await asyncio.wait((more_room,), timeout=_LOOK_S)
        finally:
            if more_room in self._short:
                self._short.remove(more_room)

    def keep(self, call: AdmittedCall, nbytes: int) -> None:
        """Room for so many bytes and no more."""
        more = nbytes - call.nbytes
        if call.evicted or not more:
            return
        call.nbytes = nbytes
        self._bytes += more
        self._bytes_of[call.peer] = self._bytes_of.get(call.peer, 0) + more
        if not self._bytes_of[call.peer]:
            del self._bytes_of[call.peer]
        if more < 0:
            self._wake()

    def owes(self, call: AdmittedCall, *, yes: bool = True) -> None:
        """Whether it owes a request, for whose want it may be ended."""
        if yes:
            self._owing.setdefault(call.peer, {})[call] = None
            self._wake()
        elif (owing := self._owing.get(call.peer)) is not None:
            owing.pop(call, None)
            if not owing:
                del self._owing[call.peer]

    def forget(self, call: AdmittedCall) -> None:
        """It is over."""
        self.owes(call, yes=False)
        self.keep(call, 0)
        self._total -= 1
        self._of[call.peer] -= 1
        if not self._of[call.peer]:
            del self._of[call.peer]

    # --- making room

    def _wake(self) -> None:
        """There may be room now for who waits for it."""
        while self._short:
            if not (waiting := self._short.popleft()).done():
                waiting.set_result(None)

    def _idle(self, peer: str, but: AdmittedCall) -> list[AdmittedCall]:
        """Calls of a peer that room is kept for and that send nothing, the oldest first."""
        late_s = self._clock() - PATIENCE_S
        return [
            one
            for one in self._owing.get(peer, ())
            if one.nbytes and one is not but and (one.is_stream or one.since_s <= late_s)
        ]

    def _make_room(self, peer: str, why_not: str) -> None:
        owing = self._owing.get(peer)
        if not owing:
            raise RateLimited(why_not)
        self._evict(next(iter(owing)))

    def _evict(self, victim: AdmittedCall) -> None:
        self.forget(victim)
        victim.evicted = True
        victim.on_evicted()


class Deadline:
    """Calls `late` if it is not stopped within `seconds` of its start."""

    def __init__(self, seconds: float, late: Callable[[], None]) -> None:
        self._seconds, self._late = seconds, late
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Without effect while it runs."""
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(self._seconds, self._is_late)

    def stop(self) -> None:
        """Without effect while it does not run."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _is_late(self) -> None:
        self._handle = None
        self._late()


class SendingDeadline:
    """Aborts a connection whose peer takes nothing of what is sent for so long.

    A peer that takes it slowly is not gone.

    Args:
        transport: of the connection.
        seconds: within which something has to be taken.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport = transport
        self._deadline = Deadline(seconds, self._look)
        self._unsent = 0  # bytes, when it was looked last

    def start(self) -> None:
        """The peer has not taken all."""
        self._unsent = self._transport.get_write_buffer_size()
        self._deadline.start()

    def stop(self) -> None:
        """It has, or is gone."""
        self._deadline.stop()

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._unsent:
            self.start()
        else:
            self._transport.abort()


def _expire(limit: asyncio.Timeout) -> None:
    """Let a time limit be over now."""
    with contextlib.suppress(RuntimeError):  # it is over anyway
        limit.reschedule(0.0)
