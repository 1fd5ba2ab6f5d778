"""The timeline of a reader: who worked and who waited when, for Perfetto.

Times are those of the machine's monotonic clock, which the trainer's messages bear, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...proto.channel import Message
from ..config import ReaderConfig
from ..trace_file import TraceFile
from .outcomes import Broke, Done, Job, Outcome
from .trace_changes import Changes
from .trace_lives import Lives
from .trace_pen import LOOP, PULLS, Pen

if TYPE_CHECKING:
    from .member import Member

#: Nothing waits longer until it is written.
FLUSH_EVERY_S: Final = 0.2


class Trace(Protocol):
    """What the engine's thread says of its work."""

    def said(self, message: Message) -> None:
        """The trainer has said this."""
        ...

    def came(self, teacher: str, outcome: Outcome, now: float) -> None:
        """A teacher's link has posted this."""
        ...

    def labelled(self, number: int) -> None:
        """The labels of a batch are whole."""
        ...

    def look(self, members: Sequence[Member], now: float) -> None:
        """This is how things are, after whatever happened."""
        ...

    def close(self, now: float) -> None:
        """Nothing more comes."""
        ...


def open_trace(config: ReaderConfig) -> Trace:
    """What the reader's configuration asks for."""
    if not config.trace:
        return NoTrace()
    return Timeline(TraceFile(Path(config.trace), config.trace_max_bytes))


class NoTrace:
    """Nobody asked for a timeline."""

    def said(self, message: Message) -> None: ...

    def came(self, teacher: str, outcome: Outcome, now: float) -> None: ...

    def labelled(self, number: int) -> None: ...

    def look(self, members: Sequence[Member], now: float) -> None: ...

    def close(self, now: float) -> None: ...


class Timeline:
    """Draws into `file`; used by the engine's thread alone."""

    def __init__(self, file: TraceFile) -> None:
        self._pen = Pen(file)
        self._lives = Lives(self._pen)
        self._changes = Changes(self._pen)
        self._told = False  # all that the engine before this one knew, and drew
        self._loop_since: float | None = None  # since when the training loop works
        self._waits_since: float | None = None
        self._flushed_at = 0.0

    # --- the trainer

    def said(self, message: Message) -> None:
        match message["kind"]:
            case "reset":
                self._told = True
                self._loop_since = self._waits_since = None
                self._lives.leave()
            case "resumed":
                self._told = True
            case "batch":
                self._on_pulled(message)
            case "waiting":
                self._waits_since = message["at"]
            case "taken":
                self._on_taken(message)
            case "recalled":
                self._lives.recalled(message["number"])

    def _on_pulled(self, message: Message) -> None:
        number, at, samples = message["number"], message["at"], message["samples"]
        self._lives.pulled(number, at, samples)
        if self._told:
            begin, nbytes = at - message["source_s"], message["nbytes"]
            args = {"samples": samples, "bytes": nbytes}
            self._pen.slice(PULLS, f"pull {number}", begin, at, args)

    def _on_taken(self, message: Message) -> None:
        at, number = message["at"], message["number"]
        called_at = at if self._waits_since is None else self._waits_since
        if self._loop_since is not None:
            self._pen.slice(LOOP, "step", self._loop_since, called_at)
        if self._waits_since is not None:
            self._pen.slice(LOOP, f"wait for {number}", self._waits_since, at)
        self._loop_since, self._waits_since = at, None
        self._lives.taken(number, at)

    # --- the teachers

    def came(self, teacher: str, outcome: Outcome, now: float) -> None:
        args: dict[str, Any]
        match outcome:
            case Done(job=job):
                name, end = _batches(job), job.asked_at + outcome.seconds
                args = {"device_ms": round(outcome.device_s * 1e3, 3)}
            case Broke(Job() as job, error):
                name, end = f"failed: {_batches(job)}", now
                args = {"error": str(error)[:300]}
            case _:
                return
        args |= {"request": job.request, "samples": job.samples}
        self._pen.request(teacher, name, job.asked_at, end, args)

    def labelled(self, number: int) -> None:
        self._lives.labelled(number)

    # --- how things are

    def look(self, members: Sequence[Member], now: float) -> None:
        self._lives.look(now)
        self._changes.look(members, now)
        if now - self._flushed_at >= FLUSH_EVERY_S:
            self._flushed_at = now
            self._pen.flush()

    def close(self, now: float) -> None:
        self._lives.look(now)
        self._lives.leave()
        self._changes.end(now)
        self._pen.end(now)


def _batches(job: Job) -> str:
    numbers = sorted({span.batch for span in job.spans})
    if len(numbers) == 1:
        return f"batch {numbers[0]}"
    return f"batches {numbers[0]} to {numbers[-1]}"
