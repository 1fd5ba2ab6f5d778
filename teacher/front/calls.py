"""How many calls a server holds at once, and which one has to go when one more comes.

A call that has not sent its request yet costs nearly nothing to its caller, so anybody can open
many. Therefore nothing is refused because of them: where there is no room, the oldest call that
still owes its request is ended for the new one, of those callers that have most such calls. Whoever
sends its request along with the call, as every client does, is served throughout.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import RateLimited


class Call:
    """One call that a table holds.

    Attributes:
        peer: who makes it.
        evicted: it was ended to make room.
        on_evicted: called once, when that happens.
    """

    __slots__ = ("evicted", "on_evicted", "peer")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.evicted = False
        self.on_evicted: Callable[[], None] = lambda: None


class CallTable:
    """The calls of one server; used by its event loop only.

    Args:
        most: calls at once.
        most_of_one: calls of one peer at once.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._total = 0
        self._of: dict[str, int] = {}
        #: Calls that owe their request, the oldest first.
        self._owing: dict[str, dict[Call, None]] = {}

    def __len__(self) -> int:
        return self._total

    def begin(self, peer: str) -> Call:
        """Take a call that has sent nothing yet.

        Raises:
            RateLimited: there is no room, and every call has sent its request.
        """
        if self._of.get(peer, 0) >= self._most_of_one:
            self._make_room(peer, f"{self._most_of_one} calls of one client are open: wait for one")
        elif self._total >= self._most:
            greediest = max(self._owing, key=lambda name: len(self._owing[name]), default="")
            self._make_room(greediest, f"{self._most} calls are open: try again later")
        call = Call(peer)
        self._total += 1
        self._of[peer] = self._of.get(peer, 0) + 1
        self._owing.setdefault(peer, {})[call] = None
        return call

    def received(self, call: Call) -> None:
        """The request of `call` is here: from now on it is worth its place."""
        owing = self._owing.get(call.peer)
        if owing is not None and owing.pop(call, self) is None and not owing:
            del self._owing[call.peer]

    def owes(self, call: Call) -> None:
        """`call` is a stream whose last request is answered: it owes the next."""
        self._owing.setdefault(call.peer, {})[call] = None

    def end(self, call: Call) -> None:
        """`call` is over; an evicted one has ended before."""
        if call.evicted:
            return
        self.received(call)
        self._total -= 1
        self._of[call.peer] -= 1
        if not self._of[call.peer]:
            del self._of[call.peer]

    def _make_room(self, peer: str, why_not: str) -> None:
        owing = self._owing.get(peer)
        if not owing:
            raise RateLimited(why_not)
        victim = next(iter(owing))
        self.end(victim)
        victim.evicted = True
        victim.on_evicted()
