"""The statistics of a reader, and callbacks for its events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from ..runtime.errors import UsageError

log = logging.getLogger(__name__)

#: Seconds that `Callbacks.close` waits for a call in progress.
CLOSE_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """Statistics of a reader at one moment; counters run over all its epochs and engines.

    Attributes:
        yielded: batches that the source has yielded, without those skipped on resuming.
        delivered: batches that the training loop has received.
        samples_delivered: rows of those batches.
        samples_per_s: rows per second over the last 5 s, of batches that the training loop took and
            of answered calls.
        resends: requests with rows that had been sent before.
        hedges: requests sent to a second teacher because the first was late.
        canaries: requests sent to a second teacher to compare both answers.
        ejections: times that a teacher was ejected: the reader stopped using it, see `ejected_for`.
        ejections_for_lying: those because other teachers contradicted the labels.
        ready: labelled batches that wait for the training loop. With `ordered=True`, a batch that
            waits for an earlier one does not count.
        volume_bytes: bytes of labelled batches that were not taken, as of the engine's last report
            (Algorithm 1 of the paper).
        upper_bytes: the threshold `ut` of Algorithm 1: above it no new batch is pulled.
        lower_bytes: the threshold `lt`: below it pulling resumes.
        want: number of teachers that the reader asks for.
        needed: n = ceil(t_t / t_s); 0 while a time is unknown.
        t_t_s: seconds per sample of the average teacher; 0 while unknown.
        t_s_s: the student's seconds per sample, calls included; 0 while unknown.
        teachers: ids of the teachers that the reader has, ejected ones included.
        ejected: ids of the ejected teachers.
        ejected_for: why each of these teachers was ejected, in the same order: "failed", "silent",
            "wrong", "lied" or "refused".
        dispute: describes which teachers contradict each other, on which output and by how much,
            while no third teacher can decide which one is wrong; empty: there is no dispute.
        stragglers: ids of teachers that are much slower than the others, or silent.
        in_flight: (teacher, requests in flight) pairs.
        served: (teacher, requests that it has answered since it was assigned) pairs; answers with
            unused labels do not count. A request is a batch unless `request_rows` is set.
        starved_s: seconds that the training loop, or calls of `TeacherPool`, waited for labels.
        blocked_s: seconds that pulling was paused because the buffer was full.
        source_wait_s: seconds that the training loop waited for the source.
        state: "starved", "source_wait", "blocked" or "steady".
        content_id: the model content that labels come from; empty while unknown.
        label_kinds: (output, kind) pairs that the teachers publish: "logits", "probabilities",
            "log-probabilities" or "other". Fixed from the first labelled batch on, except that a
            new model content may change the kind of outputs that teachers convert (top-k,
            `temperature`).
        store_hits: samples with labels in the store.
        store_misses: samples without labels in the store.
        store_dropped: samples with labels that could not be written to the store.
        store_trouble: why the store cannot be used now; empty: it can.
        waiting_for: describes what the stream waits for; empty: nothing.
        unlabelled: batches delivered without soft labels, because there was no teacher.
        partly_labelled: batches without the labels of a service that had no teacher.
        weights: (service, weight) pairs of the latest batch with averaged labels.
        engine_restarts: times that the engine process was restarted.
        calls: calls of `TeacherPool` that got labels.
        calls_failed: calls that got an error.
    """

    yielded: int = 0
    delivered: int = 0
    samples_delivered: int = 0
    samples_per_s: float = 0.0
    resends: int = 0
    hedges: int = 0
    canaries: int = 0
    ejections: int = 0
    ejections_for_lying: int = 0
    ready: int = 0
    volume_bytes: int = 0
    upper_bytes: int = 0
    lower_bytes: int = 0
    want: int = 0
    needed: int = 0
    t_t_s: float = 0.0
    t_s_s: float = 0.0
    teachers: tuple[str, ...] = ()
    ejected: tuple[str, ...] = ()
    ejected_for: tuple[str, ...] = ()
    dispute: str = ""
    stragglers: tuple[str, ...] = ()
    in_flight: tuple[tuple[str, int], ...] = ()
    served: tuple[tuple[str, int], ...] = ()
    starved_s: float = 0.0
    blocked_s: float = 0.0
    source_wait_s: float = 0.0
    state: str = "steady"
    content_id: str = ""
    label_kinds: tuple[tuple[str, str], ...] = ()
    store_hits: int = 0
    store_misses: int = 0
    store_dropped: int = 0
    store_trouble: str = ""
    waiting_for: str = ""
    unlabelled: int = 0
    partly_labelled: int = 0
    weights: tuple[tuple[str, float], ...] = ()
    engine_restarts: int = 0
    calls: int = 0
    calls_failed: int = 0

    @classmethod
    def of(cls, message: Mapping[str, Any], **counted_here: Any) -> Self:
        """Combine the engine's latest message with the fields that the trainer counts itself."""
        names = {field.name for field in fields(cls)}
        from_engine = {key: _frozen(value) for key, value in message.items() if key in names}
        return cls(**from_engine | counted_here)

    def line(self) -> str:
        """Format a line of constant width for a progress bar; the same as `str`.

        The line shows rows per second, the volume in percent of `ut`, teachers present and wanted,
        and the times starved, blocked and waiting for the source.
        """
        volume = min(round(100 * self.volume_bytes / max(self.upper_bytes, 1)), 999)
        teachers = f"{len(self.teachers)}/{self.want}"
        return (
            f"{_scaled(self.samples_per_s, _RATES)}/s volume {volume:>3}% teachers {teachers:>5}"
            f" starved {_scaled(self.starved_s, _TIMES)}"
            f" blocked {_scaled(self.blocked_s, _TIMES)}"
            f" source {_scaled(self.source_wait_s, _TIMES)}"
        )

    def __str__(self) -> str:
        return self.line()


#: The counters that the engine counts; a new engine begins at 0.
ENGINE_COUNTERS: Final = (
    "resends",
    "hedges",
    "canaries",
    "ejections",
    "ejections_for_lying",
    "starved_s",
    "blocked_s",
    "source_wait_s",
    "store_hits",
    "store_misses",
    "store_dropped",
    "partly_labelled",
)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_RATES: Final = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"))
_TIMES: Final = ((1.0, "s"), (60.0, "m"), (3600.0, "h"), (86400.0, "d"))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Format a number in five characters: "12.1s", " 812k"."""
    size, unit = next((pair for pair in units if value < 999.5 * pair[0]), units[-1])
    shown = min(value / size, 999.0)
    return f"{shown:.{int(shown < 99.95)}f}{unit}".rjust(5)


class Callback:
    """Methods called on events of a reader; override some, and pass it as `callbacks=[...]`.

    `on_batch` is called in the training loop and delays it. A thread of the reader calls the
    others, one after another. That thread compares stats that arrive about five times a second, so
    changes that revert in between are not reported. Exceptions of a callback are logged, not
    raised.
    """

    def on_batch(self, samples: int, waited_s: float) -> None:
        """The training loop gets a batch of `samples` rows, after a wait of `waited_s` seconds."""

    def on_starved(self, stats: ReaderStats) -> None:
        """The training loop, or a call of `TeacherPool`, has started to wait for labels."""

    def on_blocked(self, stats: ReaderStats) -> None:
        """Pulling has paused: the buffer is full."""

    def on_source_wait(self, stats: ReaderStats) -> None:
        """The training loop has started to wait for the source of batches."""

    def on_teacher_joined(self, teacher: str) -> None:
        """The reader starts to send to this teacher, or resumes after an ejection."""

    def on_teacher_lost(self, teacher: str) -> None:
        """The reader stops sending to this teacher: it died, drains, or is assigned no longer."""

    def on_teacher_ejected(self, teacher: str, cause: str) -> None:
        """A teacher was ejected: "failed", "silent", "wrong", "lied" or "refused"."""

    def on_want_changed(self, want: int, before: int) -> None:
        """The reader asks for `want` teachers; until now it asked for `before`."""

    def on_engine_restarted(self, restarts: int) -> None:
        """The engine process died and was restarted, `restarts` times so far."""


#: A method of `Callback`, and its arguments.
Call = tuple[str, tuple[Any, ...]]


def calls_for(before: ReaderStats, after: ReaderStats) -> Iterator[Call]:
    """Yield the calls that report the changes from `before` to `after`."""
    if after.engine_restarts > before.engine_restarts:
        yield "on_engine_restarted", (after.engine_restarts,)
    used_before, used_now = _used_teachers(before), _used_teachers(after)
    newly_ejected = [name for name in after.ejected if name not in before.ejected]
    for name in used_now:
        if name not in used_before:
            yield "on_teacher_joined", (name,)
    for name in used_before:
        if name not in used_now and name not in newly_ejected:
            yield "on_teacher_lost", (name,)
    for name, cause in zip(after.ejected, after.ejected_for, strict=True):
        if name in newly_ejected:
            yield "on_teacher_ejected", (name, cause)
    if after.want != before.want:
        yield "on_want_changed", (after.want, before.want)
    if after.state != before.state and after.state != "steady":
        yield f"on_{after.state}", (after,)


def _used_teachers(stats: ReaderStats) -> list[str]:
    return [name for name in stats.teachers if name not in stats.ejected]


class Callbacks:
    """Calls the callbacks of one reader, until `close`.

    Args:
        callbacks: callbacks of the user.
        stats: returns the current stats.

    Raises:
        UsageError: an item is not a `Callback`.
    """

    def __init__(self, callbacks: Sequence[Callback], stats: Callable[[], ReaderStats]) -> None:
        if not isinstance(callbacks, Iterable):
            raise UsageError(f"callbacks is a list, as in callbacks=[{callbacks!r}]")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise UsageError(
                    f"callbacks are objects of subclasses of Callback, not {callback!r}"
                )
        self._callbacks = tuple(callbacks)
        self._stats = stats
        self._changed = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that compares stats, if there are callbacks."""
        if self._callbacks:
            thread = threading.Thread(target=self._watch, name="edl-reader-callbacks", daemon=True)
            thread.start()
            self._thread = thread

    def batch(self, samples: int, waited_s: float) -> None:
        """Call `on_batch`, in the caller's thread."""
        if self._callbacks:
            self._call("on_batch", (samples, waited_s))

    def notify(self) -> None:
        """Have the thread compare the stats: new ones have arrived."""
        self._changed.set()

    def close(self) -> None:
        """Stop calling; waits for a call in progress for up to `CLOSE_GRACE_S`."""
        self._closed = True
        self._changed.set()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(CLOSE_GRACE_S)

    def _watch(self) -> None:
        before = ReaderStats()
        while self._changed.wait() and not self._closed:
            self._changed.clear()  # before the stats are read: later ones wake it again
            after = self._stats()
            for name, arguments in calls_for(before, after):
                # A SystemExit would end only this thread, silently.
                self._call(name, arguments, BaseException)
            before = after

    def _call(
        self, name: str, arguments: tuple[Any, ...], logged: type[BaseException] = Exception
    ) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, name)(*arguments)
            except logged:
                log.exception("%s of callback %r failed", name, callback)
