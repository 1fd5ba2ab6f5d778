"""How many calls and bytes of requests a server holds at once, and what has to go for more.

A call that has not sent its request yet costs nearly nothing to its caller, so anybody can open
many. Therefore nothing is refused because of them: where there is no room, the oldest call that
still owes its request is ended for the new one, of those callers that have most such calls. Whoever
sends its request along with the call, as every client does, is served throughout.

Before a request is received there has to be room for its bytes: for the length that HTTP and the
door announce, and for the longest message there may be of gRPC, which announces none. A stream of
gRPC may send its next request at any moment, so it keeps that room; while it is idle it can be
ended for another call, and so can any call that has owed its request for a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from ...errors import RateLimited
from ..config import ServerConfig

#: Seconds after which a call that owes its request may be ended for the bytes of another one.
PATIENCE_S: Final = 1.0
#: Between two looks whether some have owed theirs for so long.
_LOOK_S: Final = 0.25
#: What a call is told whose request there is no room for.
NO_ROOM: Final = "requests of other calls fill the memory for them: try again later"

#: What a call is told that made room for another one.
EVICTED: Final = "a call that sent nothing was ended for another one"


def expire(limit: asyncio.Timeout) -> None:
    """Let a time limit be over now."""
    with contextlib.suppress(RuntimeError):  # it is over anyway
        limit.reschedule(0.0)


class Call:
    """One call that a table holds.

    Attributes:
        peer: who makes it.
        nbytes: of its request, as far as there is room kept for them.
        is_stream: it may send many requests, at any time.
        since_s: when it began, on the table's clock.
        evicted: it was ended to make room.
        on_evicted: called once, when that happens.
    """

    __slots__ = ("evicted", "is_stream", "nbytes", "on_evicted", "peer", "since_s")

    def __init__(self, peer: str, is_stream: bool, since_s: float) -> None:
        self.peer = peer
        self.since_s = since_s
        self.nbytes = 0
        self.is_stream = is_stream
        self.evicted = False
        self.on_evicted: Callable[[], None] = lambda: None


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
        self._owing: dict[str, dict[Call, None]] = {}

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

    def begin(self, peer: str, *, is_stream: bool = False) -> Call:
        """Take a call that has sent nothing yet.

        Raises:
            RateLimited: there is no room, and every call has sent its request.
        """
        if self._of.get(peer, 0) >= self._most_of_one:
            self._make_room(peer, f"{self._most_of_one} calls of one client are open: wait for one")
        elif self._total >= self._most:
            greediest = max(self._owing, key=lambda name: len(self._owing[name]), default="")
            self._make_room(greediest, f"{self._most} calls are open: try again later")
        call = Call(peer, is_stream, self._clock())
        self._total += 1
        self._of[peer] = self._of.get(peer, 0) + 1
        self._owing.setdefault(peer, {})[call] = None
        return call

    async def expect(self, call: Call, nbytes: int) -> None:
        """Wait until there is room for a request of up to so many bytes, and keep it."""
        while not self._has_room(call, nbytes):
            more_room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._short.append(more_room)
            try:
                await asyncio.wait((more_room,), timeout=_LOOK_S)  # others may owe for too long
            finally:
                if more_room in self._short:
                    self._short.remove(more_room)

    def announced(self, call: Call, nbytes: int) -> None:
        """The request of `call` is going to have so many bytes: keep room for them.

        Raises:
            RateLimited: there is none.
        """
        if not self._has_room(call, nbytes):
            raise RateLimited(NO_ROOM)

    def received(self, call: Call, nbytes: int | None = None) -> None:
        """The request of `call` is here: from now on it is worth its place.

        Args:
            call: that owed it.
            nbytes: that it has; None: as many as were announced.
        """
        owing = self._owing.get(call.peer)
        if owing is not None and owing.pop(call, self) is None and not owing:
            del self._owing[call.peer]
        if nbytes is not None:
            self._keep(call, nbytes)

    def owes(self, call: Call) -> None:
        """`call` is a stream whose last request is answered: it owes the next."""
        self._owing.setdefault(call.peer, {})[call] = None
        self._wake()

    def end(self, call: Call) -> None:
        """`call` is over; an evicted one has ended before."""
        if call.evicted:
            return
        self.received(call, 0)
        self._total -= 1
        self._of[call.peer] -= 1
        if not self._of[call.peer]:
            del self._of[call.peer]

    def _keep(self, call: Call, nbytes: int) -> None:
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

    def _wake(self) -> None:
        """There may be room now for who waits for it."""
        while self._short:
            if not (waiting := self._short.popleft()).done():
                waiting.set_result(None)

    def _has_room(self, call: Call, nbytes: int) -> bool:
        """Keep room for so many bytes, for which idle calls are ended; whether there is any."""
        more = nbytes - call.nbytes
        while True:
            if self._bytes_of.get(call.peer, 0) + more > self._most_bytes_of_one:
                idle = self._idle(call.peer, call)
            elif self._bytes + more > self._most_bytes:
                every = (self._idle(peer, call) for peer in self._owing)
                idle = max(every, key=len, default=[])
            else:
                self._keep(call, nbytes)
                return True
            if not idle:
                return False
            self._evict(idle[0])

    def _idle(self, peer: str, but: Call) -> list[Call]:
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

    def _evict(self, victim: Call) -> None:
        self.end(victim)
        victim.evicted = True
        victim.on_evicted()
