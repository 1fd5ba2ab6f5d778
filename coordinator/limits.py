"""Limits of a service manager for its callers: sizes, rates, concurrency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ..runtime.errors import RateLimited
from ..scheduler.admission import RateLimit


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
            time. So the streams of a machine without power end.
        write_s: seconds within which a peer must read a message.
        held: teachers in each list of a report: held, slow, ejected and so on.
        text: characters of a text in a report.
        streams: students' streams at this manager.
        streams_per_principal: students' streams with one credential.
        watchers: streams of the log at this manager.
        watchers_per_principal: streams of the log with one credential.
        calls: concurrent calls at this manager.
        silent: open calls whose request has not arrived yet.
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
        """Raise TooLarge if a message exceeds the limit."""
        if len(data) > self.message_bytes:
            # gRPC's own words, "larger than max": clients recognize them, and do not try again.
            raise TooLarge(
                f"a message is larger than max ({len(data)} vs. {self.message_bytes} bytes)"
            )


class Places:
    """Limits concurrency, in total and for each principal. Only for one thread.

    Args:
        what: what is limited, for messages: "streams of students".
        most: limit of all.
        most_each: limit of one principal.
    """

    def __init__(self, what: str, most: int, most_each: int) -> None:
        self._what: Final = what
        self._most: Final = most
        self._most_each: Final = most_each
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Number of places that are held."""
        return self._taken.total()

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Hold a place while the body runs.

        Raises:
            Overloaded: no place is free.
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
