"""What happened in a run: kept for people, and hashed as a whole, batch by batch."""

from __future__ import annotations

from hashlib import blake2b

from .clock import Clock
from .result import Labelled, SimulatedEvent, Stepped


class Trace:
    """Hears all that happens, in order.

    Args:
        clock: tells when.
        keep_batches: keep every request and step too; they are hashed in any case.

    Attributes:
        happenings: of the control plane.
        labelled, stepped: requests and steps, if they are kept.
    """

    def __init__(self, clock: Clock, keep_batches: bool = False) -> None:
        self.happenings: list[SimulatedEvent] = []
        self.labelled: list[Labelled] = []
        self.stepped: list[Stepped] = []
        self._clock = clock
        self._keep = keep_batches
        self._hash = blake2b(digest_size=8)

    def tell(self, kind: str, subject: str, text: str = "") -> None:
        """Something has happened to the mesh now."""
        now = self._clock.now
        self.happenings.append(SimulatedEvent(now, kind, subject, text))
        self._hash.update(f"{now!r} {kind} {subject} {text}\n".encode())

    def hash(self, *facts: object) -> None:
        """Something has happened that is too small to be told: it counts for the hash."""
        self._hash.update(f"{self._clock.now!r} {facts!r}\n".encode())

    def answered(self, one: Labelled) -> None:
        """The answer to a request has come."""
        self._hash.update(
            f"{one.answered_s!r} L {one.teacher} {one.student} {one.batch} {one.rows}"
            f" {one.began_s!r} {one.used}\n".encode()
        )
        if self._keep:
            self.labelled.append(one)

    def stepped_on(self, one: Stepped) -> None:
        """A step is over."""
        self._hash.update(f"{one.ended_s!r} S {one.student} {one.batch} {one.began_s!r}\n".encode())
        if self._keep:
            self.stepped.append(one)

    @property
    def digest(self) -> str:
        """Of all that happened until now: 16 hex digits."""
        return self._hash.hexdigest()
