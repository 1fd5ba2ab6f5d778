"""How much a service manager takes from whoever calls: sizes, rates, places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ..runtime.errors import RateLimited
from ..scheduler.admission import RateLimit


class TooLarge(RateLimited):
    """A message above the limit."""


class Overloaded(RateLimited):
    """This manager holds as much as it can; another one may take more."""


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    """What one service manager takes.

    The defaults are an order of magnitude above what a mesh of 10,000 teachers and 1,000 students
    needs, and far below what would harm the manager.

    Attributes:
        message_bytes: of one message.
        reports: of each stream of a student.
        first_report_s: seconds until a stream, or a call, has to have said what it is about.
        ping_s: seconds without a word until a peer is asked whether it is there; it has half
            as long to answer. So a machine that lost its power loses its streams.
        write_s: seconds until a peer has to have taken a message that was written to it.
        held: teachers that a student may name: that it holds, finds slow, or has ejected.
        text: characters of any text in a report.
        streams: of students, at this manager.
        streams_per_principal: of students that show the same credential.
        watchers: streams of the log, at this manager.
        watchers_per_principal: of those that show the same credential.
        calls: answered side by side, at this manager.
        silent: calls that may be open and have not said yet what they ask.
    """

    message_bytes: int = 1 << 20
    reports: RateLimit = field(default_factory=lambda: RateLimit(20.0, 40.0))
    first_report_s: float = 10.0
    ping_s: float = 10.0
    write_s: float = 30.0
    held: int = 4096
    text: int = 256
    streams: int = 8192
    streams_per_principal: int = 4096
    watchers: int = 64
    watchers_per_principal: int = 32
    calls: int = 64
    silent: int = 1024

    def check_size(self, data: bytes) -> None:
        """Raises TooLarge for a message above the limit."""
        if len(data) > self.message_bytes:
            # "larger than max" is gRPC's own: a client knows by it that it need not try again.
            raise TooLarge(
                f"a message is larger than max ({len(data)} vs. {self.message_bytes} bytes)"
            )


class Places:
    """So many at once, and of one principal fewer. Used by one thread.

    Args:
        what: what they are, for messages: "streams of students".
        most: at once.
        most_each: at once of one principal.
    """

    def __init__(self, what: str, most: int, most_each: int) -> None:
        self._what: Final = what
        self._most: Final = most
        self._most_each: Final = most_each
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How many are taken now."""
        return self._taken.total()

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Hold a place while the body runs.

        Raises:
            Overloaded: all are taken.
            RateLimited: this principal has too many.
        """
        if self.taken >= self._most:
            raise Overloaded(f"this service manager holds {self._most} {self._what}, its most")
        if self._taken[principal] >= self._most_each:
            raise RateLimited(
                f"{self._most_each} {self._what} with one credential are the most that are taken"
            )
        self._taken[principal] += 1
        try:
            yield
        finally:
            self._taken[principal] -= 1
            if not self._taken[principal]:
                del self._taken[principal]
